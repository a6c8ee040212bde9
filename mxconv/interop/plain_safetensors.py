"""`--to safetensors`: plain 16-bit weights in a folder that every library loads.

The target's weights come back bit for bit: rebuilt from BSFP, or copied from beside an MXFP4 draft. While they are
written they are hashed, and a tensor whose SHA-256 is not the recorded one stops the export. An MXFP4 draft can be
written instead (`level="draft"`): each of its values is a 16-bit float exactly.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import without_wrappers
from mxconv.arrays import U16
from mxconv.engine.stored_weights import EMBEDDING
from mxconv.errors import MxconvError
from mxconv.interop.exported import Export, ExportedTensor, SourceHash, opened_model, refuse_fp8, write_model_folder
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.progress import Progress, silent
from mxconv.report.open_weights import WeightTensor

Level = Literal["target", "draft"]


def export_safetensors(
    package: Path, output: Path, *, level: Level = "target", force: bool = False, progress: Progress = silent
) -> Export:
    """Write a folder of 16-bit weights.

    Args:
        package: the package.
        output: a folder that does not exist, unless it is an export and `force` is set.
        level: "target", bit for bit the source's weights; or "draft", the MXFP4 level's values in their place.
        force: replace an earlier export.
        progress: told about every slice.

    Raises:
        MxconvError: the package is damaged or no model, it has no MXFP4 draft, or the output cannot be written.
            Nothing half-written is left.
    """
    with opened_model(package) as (opened, weights):
        manifest = opened.manifest
        if level == "draft" and manifest.options.codec != "mxfp4":
            raise MxconvError(
                f"{package}: its draft is {manifest.options.codec}, whose values need more than 16 bits; an MXFP4 "
                "draft is required. Export --level target, or convert with --codec mxfp4."
            )
        if level == "draft":
            refuse_fp8(opened, "a draft in 16 bits")
        records = {record.name: record for record in manifest.tensors}
        tensors = {
            tensor.name: (dense_tensor(tensor, records[tensor.name], opened, is_draft=level == "draft"),)
            for tensor in weights.tensors
        }
        is_exact = level == "target" and not any(record.is_rescaled for record in records.values())
        notes = _notes(records.get(EMBEDDING)) if level == "draft" else ()
        record = {"level": level, "bit_exact": is_exact}
        return write_model_folder(
            output, "safetensors", opened, tensors, force=force, progress=progress, record=record, notes=notes
        )


def dense_tensor(
    tensor: WeightTensor, record: TensorRecord, package: Package, *, is_draft: bool = False
) -> ExportedTensor:
    """A tensor with its 16-bit values, or whatever it was kept in.

    Args:
        tensor: from `package_weights`.
        record: of the same tensor.
        package: of both, for messages.
        is_draft: take the draft's values where it has any.
    """
    pieces = _draft_pieces if is_draft and tensor.draft_rows is not None else _target_pieces
    name = without_wrappers(tensor.name)
    return ExportedTensor(name, tensor.dtype, tensor.shape, partial(pieces, tensor, record, package))


def _notes(embedding: TensorRecord | None) -> tuple[str, ...]:
    """Notes on what of the draft a folder of plain tensors cannot hold."""
    if embedding is None or not embedding.is_quantized:
        return ()
    return (
        f"{EMBEDDING} is also the output head, and one tensor is both: its look-ups are the draft's values here, exact "
        "in the package's draft, so that this is another model. A GGUF file has two: export --to gguf.",
    )


def _target_pieces(tensor: WeightTensor, record: TensorRecord, package: Package) -> Iterator[NDArray[np.generic]]:
    proof, num_rows = SourceHash(package, record), tensor.shape[0] if tensor.shape else 1
    for _, stop, patterns in tensor.slices():
        proof.add(patterns, stop == num_rows)
        yield patterns


def _draft_pieces(tensor: WeightTensor, record: TensorRecord, package: Package) -> Iterator[NDArray[np.generic]]:
    assert tensor.draft_rows is not None and tensor.float_format is not None
    draft_rows, float_format = tensor.draft_rows, tensor.float_format

    def draft_slice(start: int, stop: int) -> U16:
        values = draft_rows(start, stop)
        patterns = float_format.encode(values)
        if not np.array_equal(float_format.decode(patterns), values):  # no scale of an F16 weight is that small
            raise MxconvError(
                f"{package.root}: tensor {tensor.name}: draft values that {float_format.name} does not hold; values "
                "that 16 bits hold exactly are required. The package is damaged, or mxconv did not write it; convert "
                "again."
            )
        return patterns

    assert record.codec in ("mxfp4", "mxint8")
    for _, _, patterns in replace(tensor, rows=draft_slice).slices():
        yield patterns
