"""Weights that another quantizer packed: which tensors show it, and who did it.

The tensors decide: their names, dtypes and neighbours in a module. config.json only names the quantizer, since a model
that was decoded to 16 bits again often keeps its quantization_config.
"""

from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase

from mxconv.checkpoint.fp8_matrix import fp8_matrices
from mxconv.checkpoint.source import Checkpoint
from mxconv.checkpoint.stacked import carried_tensors
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.errors import CheckpointError

INTEGERS = ("BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64")
TABLES = ("BOOL", "U64", "I64")  # whose matrices are masks and indices, unless scales are beside them
BUFFERS = ("bias", "mask", "_ids", "_index")  # how integers end that are no weights
QUANTIZERS = {  # how the names of tensors end that only one quantizer writes
    "GPTQ or AWQ": (".qweight", ".qzeros"),
    "bitsandbytes": (".absmax", ".quant_map", ".SCB"),
    "compressed-tensors": (".weight_packed",),
    "ModelOpt": (".weight_scale_2",),
    "HQQ": (".W_q",),
    "quanto": ("._data",),
    "torchao": ("weight_qdata",),
    "EETQ": (".weight_scales",),
    "AQLM": (".codebooks",),
    "VPTQ": (".centroids.weight",),
    "SpQR": (".dense_weights",),
    "QuIP#": (".Qidxs",),
    "HIGGS": (".tables2",),
    "EXL2": (".q_weight",),
    "EXL3": (".trellis",),
    "MLX": (".biases",),
}
WEIGHTS = ("weight", *(ending for endings in QUANTIZERS.values() for ending in endings))


def check_quantizer(checkpoint: Checkpoint, skip: Sequence[str] = ()) -> None:
    """Raises CheckpointError for the first tensor with packed weights of a kind that is not read; tensors whose names
    match a pattern of `skip` stay as they are."""
    read = {*carried_tensors(checkpoint.tensors), *fp8_matrices(checkpoint.tensors, checkpoint.config)}
    modules: dict[str, list[str]] = defaultdict(list)
    for name in checkpoint.tensors:
        module, _, own = name.rpartition(".")
        modules[module].append(own)
    for name, tensor in checkpoint.tensors.items():
        module, _, own = name.rpartition(".")
        others = [other for other in modules[module] if other != own]
        if name in read or any(fnmatchcase(name, glob) for glob in skip) or not _is_packed(tensor, others):
            continue
        raise CheckpointError(
            f"{tensor.path}: tensor {name} is {tensor.dtype} {list(tensor.shape)} of {_quantizer(checkpoint)}; weights "
            "of 16 bits, FP8 with block scales or gpt-oss's MXFP4 are required. Convert the 16-bit model that it was "
            "made from."
        )


def _is_packed(tensor: SourceTensor, others: Sequence[str]) -> bool:
    """Whether a tensor, given the names of the others in its module, is packed weights."""
    if tensor.num_elements < 2:
        return False
    has_scales = any("scale" in other for other in others)
    if tensor.dtype not in INTEGERS:  # of 8-bit matrices without scales, planning says which dtype they have
        is_small = tensor.dtype.startswith(("F8", "F6", "F4")) and tensor.dtype != "F8_E8M0"
        return is_small and (has_scales or len(tensor.shape) > 2)
    if tensor.name.endswith(WEIGHTS):
        return True
    if tensor.name.endswith(BUFFERS) or "weight" in others or sum(size > 1 for size in tensor.shape) < 2:
        return False
    is_of_no_module = "." not in tensor.name and len(tensor.shape) == 2
    return has_scales or not (tensor.dtype in TABLES or tensor.shape[0] == 1 or is_of_no_module)


def _quantizer(checkpoint: Checkpoint) -> str:
    """The quantizer's name, by config.json and the names of all tensors."""
    config, method = checkpoint.config or {}, None
    for values in (config, config.get("text_config")):
        found = values.get("quantization_config") if isinstance(values, dict) else None
        method = method or (found.get("quant_method") if isinstance(found, dict) else None)
    name = next((who for who, ends in QUANTIZERS.items() if any(n.endswith(ends) for n in checkpoint.tensors)), None)
    if "quantization" in config:
        name = "MLX"
    elif method is None and (checkpoint.root / "hf_quant_config.json").is_file():
        name = "ModelOpt"
    if not isinstance(method, str) or not method:
        return f"the quantizer {name}" if name else "an unknown quantizer"
    return f"the quantizer {name} (quant_method {method})" if name else f"the quantizer {method}"
