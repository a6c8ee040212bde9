"""`--to compressed-tensors`: the MXFP4 level in the format `mxfp4-pack-quantized` of the compressed-tensors library.

For a module `m` with weights (out_features, in_features):

    m.weight_packed   U8 (out_features, in_features / 2)    element 2j in the low nibble of byte j, 2j + 1 in the high
    m.weight_scale    U8 (out_features, in_features / 32)   E8M0, bias 127

Codes and scales are carried over, nothing is rounded again. What the format has no place for stays in the target's 16
bits and is named in `ignore`: embeddings, an output head that is tied to them or MXINT8, rows that are no multiple of
32. `--lm-head quantize` gives a head that is packed.

Source:
    compressed-tensors 0.20, `MXFP4PackedCompressor` and the preset `MXFP4A16`. The head is a target by name since
    vLLM (pull request 37291) and SGLang (pull request 35228) quantize it only then.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import without_wrappers
from mxconv.codecs.mxfp4 import BLOCK
from mxconv.codecs.vnni8 import TILE_ROWS, pack_pairs, unpack_nibbles, unpack_scales
from mxconv.conversion.plan import EMBEDDINGS, HEADS, matches
from mxconv.errors import MxconvError
from mxconv.interop.exported import Export, ExportedTensor, opened_model, refuse_fp8, write_model_folder
from mxconv.interop.plain_safetensors import dense_tensor
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.progress import Progress, silent

FORMAT = "mxfp4-pack-quantized"
DRAFTED = ("mxfp4", "mxint8")
WEIGHT = ".weight"
MAX_SLICE_CODES = 1 << 22
_EXPERT = re.compile(r"\.experts\.\d+\.")


def export_compressed_tensors(
    package: Path, output: Path, *, force: bool = False, progress: Progress = silent
) -> Export:
    """Write the MXFP4 level as vLLM and transformers load it.

    Args:
        package: an MXFP4 package.
        output: a folder that does not exist, unless it is an export and `force` is set.
        force: replace an earlier export.
        progress: called after every slice.

    Raises:
        MxconvError: the package holds no MXFP4, is damaged or no model, or the output cannot be written. Nothing
            half-written is left.
    """
    with opened_model(package) as (opened, weights):
        _check_format(opened)
        records = {record.name: record for record in opened.manifest.tensors}
        packed = _packable(opened)
        tensors = {
            tensor.name: _packed_tensors(opened, records[tensor.name])
            if tensor.name in packed
            else (dense_tensor(tensor, records[tensor.name], opened),)
            for tensor in weights.tensors
        }
        dense = {r.name: _reason(r) for r in records.values() if r.codec in DRAFTED and r.name not in packed}
        return write_model_folder(
            output,
            "compressed-tensors",
            opened,
            tensors,
            force=force,
            progress=progress,
            config={"quantization_config": quantization_config(list(records.values()), packed)},
            record={"scale_rule": opened.manifest.options.scale_rule, "left_in_16_bits": dense},
            notes=(*(f"{name} is left in 16 bits: {reason}." for name, reason in dense.items()), *_dtype_notes(opened)),
        )


def _check_format(package: Package) -> None:
    """Raise MxconvError where compressed-tensors has no format for what the package holds."""
    codec = package.manifest.options.codec
    if codec != "mxfp4":
        raise MxconvError(
            f"{package.root}: its draft is {codec}, which compressed-tensors has no format for; MXFP4 is required. "
            "Convert the source with --codec mxfp4, or export --to safetensors."
        )
    stack = next((record for record in package.manifest.tensors if record.stack is not None), None)
    if stack is not None:
        raise MxconvError(
            f"{package.root}: tensor {stack.name} {stack.shape} is a stack of experts; compressed-tensors is written "
            "of matrices and vectors alone. Export --to safetensors."
        )
    refuse_fp8(package, "compressed-tensors")


def quantization_config(records: list[TensorRecord], packed: set[str]) -> dict[str, Any]:
    """The member of config.json that tells libraries what is packed, and how.

    Args:
        records: every tensor of the model.
        packed: the names of those that are packed.
    """
    heads = sorted(_module(name) for name in packed if matches(name, HEADS))
    kept = [record.name for record in records if len(record.shape) == 2 and record.name not in packed]
    ignored = {_module(name) for name in kept if name.endswith(WEIGHT) and not matches(name, EMBEDDINGS)}
    if not heads:  # a tied head has no tensor of its own, but it is a module
        ignored.add("lm_head")
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                # a library takes the first that matches, and warns of one that never does
                "targets": [*heads, "Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "float",
                    "strategy": "group",
                    "group_size": BLOCK,
                    "symmetric": True,
                    "dynamic": False,
                    "scale_dtype": "torch.uint8",
                    "zp_dtype": "torch.uint8",
                },
                "input_activations": None,
                "output_activations": None,
                "format": FORMAT,
            }
        },
        "ignore": sorted(ignored),
        "kv_cache_scheme": None,
    }


def _packable(package: Package) -> set[str]:
    """The names of the tensors that are packed.

    transformers 5.23 makes one tensor of a layer's experts when it loads them, of packed matrices alone; it would draw
    the others at random, and only say so.

    Raises:
        MxconvError: there is none, or a matrix of an expert cannot be packed; the first one is named.
    """
    records = package.manifest.tensors
    packable = {record.name for record in records if record.codec == "mxfp4" and _reason(record) == ""}
    for record in records:
        if len(record.shape) == 2 and _EXPERT.search(record.name) and record.name not in packable:
            raise MxconvError(
                f"{package.root}: tensor {record.name} {record.shape} of an expert cannot be packed as MXFP4; all "
                "matrices of experts, with in_features that are multiples of 32, are required. Export --to "
                "safetensors --level draft."
            )
    if not packable:
        raise MxconvError(
            f"{package.root}: none of its MXFP4 tensors can be packed; at least one matrix `*.weight`, embeddings "
            f"aside, with in_features a multiple of {BLOCK} is required. Export --to safetensors --level draft."
        )
    return packable


def _reason(record: TensorRecord) -> str:
    """Why an MXFP4 tensor cannot be packed; empty where it can."""
    if not record.name.endswith(WEIGHT):
        return "not the weight of a module"
    if matches(record.name, EMBEDDINGS):
        return "the output head is tied to the embeddings, which stay in 16 bits"
    if record.codec == "mxint8":
        return "the draft's output head has 8 bits, which this format has no place for"
    if record.shape[1] % BLOCK:
        return f"in_features {record.shape[1]} is no multiple of {BLOCK}"
    return ""


def _dtype_notes(package: Package) -> list[str]:
    """compressed-tensors 0.20 unpacks to BF16 whatever the model computes in; a float16 model cannot run that way."""
    load = "from_pretrained(..., quantization_config=CompressedTensorsConfig(dequantize=True))"
    return [] if package.manifest.source.dtype == "BF16" else [f"the model is float16: transformers needs {load}."]


def _module(name: str) -> str:
    return without_wrappers(name).removesuffix(WEIGHT)


def _packed_tensors(package: Package, record: TensorRecord) -> tuple[ExportedTensor, ...]:
    rows, columns = record.shape
    module = _module(record.name)
    codes, scales = partial(_codes, package, record), partial(_scales, package, record)
    return (
        ExportedTensor(f"{module}.weight_packed", "U8", (rows, columns // 2), codes),
        ExportedTensor(f"{module}.weight_scale", "U8", (rows, columns // BLOCK), scales),
    )


def _codes(package: Package, record: TensorRecord) -> Iterator[NDArray[np.generic]]:
    stored = package.mxfp4(record)
    rows, columns = stored.shape
    step = max(MAX_SLICE_CODES // columns // TILE_ROWS, 1)
    for tile in range(0, len(stored.codes), step):
        codes = unpack_nibbles(stored.codes[tile : tile + step])[: rows - tile * TILE_ROWS, :columns]
        yield pack_pairs(codes)
        package.release(record, tile * TILE_ROWS, min((tile + step) * TILE_ROWS, rows))


def _scales(package: Package, record: TensorRecord) -> Iterator[NDArray[np.generic]]:
    stored = package.mxfp4(record)
    yield unpack_scales(stored.scales)[: stored.shape[0], : stored.shape[1] // BLOCK]
