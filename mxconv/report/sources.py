"""Open a checkpoint or a package, and read the 16-bit weights of a package.

They are rebuilt from BSFP, stored beside an MXFP4 draft, or read from the source that the package references.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from mxconv.arrays import U16
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.drafts.pass_cost import head_bytes, package_bytes, screened_bytes
from mxconv.engine.stored_weights import described_package
from mxconv.errors import MxconvError, PackageError
from mxconv.kernels.encoders import decode_bsfp
from mxconv.open_source import open_source
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package, open_referenced
from mxconv.package.package_folder import find_package_or_none
from mxconv.package.stored import tensor_arrays
from mxconv.report.open_weights import (
    Dtype,
    OpenWeights,
    WeightTensor,
    checkpoint_weights,
    decoded,
    mtp_note,
    source_tensor,
    stacked,
    with_experts,
)
from mxconv.verification.tensor_proof import RebuiltTensor


@contextmanager
def open_weights(source: str, *, revision: str | None = None, dtype: Dtype | None = None) -> Iterator[OpenWeights]:
    """Open the weights of a checkpoint or of a package, which has a manifest.

    Args:
        source: the folder, Hub id or URL of a checkpoint or a package, or a .safetensors file.
        revision: of a Hub id.
        dtype: what F32 weights are rounded to; None leaves them uncounted.

    Raises:
        MxconvError: it cannot be opened, or an option does not apply to it.
    """
    place = str(Path(source).absolute()) if os.path.lexists(source) else source
    reopen = partial(open_weights, place, revision=revision, dtype=dtype)
    with ExitStack() as stack:
        path = find_package_or_none(source, revision)
        if path is not None:
            if dtype is not None:
                raise MxconvError(
                    f"{source}: --dtype {dtype} with a package; only a checkpoint takes it. Leave it out."
                )
            package = stack.enter_context(Package(path))
            yield replace(package_weights(source, package, stack), reopen=reopen)
        else:
            checkpoint = stack.enter_context(open_source(source, revision=revision))
            yield replace(checkpoint_weights(checkpoint, dtype), reopen=reopen)


def package_weights(source: str, package: Package, stack: ExitStack) -> OpenWeights:
    """The tensors of a package; `stack` closes a source that it references."""
    manifest, notes = package.manifest, [package.manifest.draft_quality]
    referenced: Mapping[str, SourceTensor] | None = None
    if not package.has_target:
        referenced = stack.enter_context(open_referenced(package)).tensors
        notes.append(f"the 16-bit weights are read from {manifest.source.id}, which the package references.")
    if not manifest.lossless and package.has_target:
        notes.append("some tensors were rescaled: what is counted is the package's reconstruction, not the source.")
    if manifest.source.cast:
        notes.append(f"the source was F32; counted are its weights rounded to {manifest.source.dtype}.")
    if manifest.certificate is not None and (decode := manifest.certificate.decode) is not None:
        notes.append(
            f"certificate: {decode.num_tokens:,} tokens of {decode.num_prompts:,} prompts decoded by "
            f"{manifest.decoded_level} with drafts and without, {decode.num_token_mismatches} tokens and "
            f"{decode.num_logit_mismatches} positions' logits differ."
        )
    notes += _head_note(package)
    names = [record.name for record in manifest.tensors]
    if mtp := mtp_note(described_package(package), names):
        notes.append(mtp)
    records = sorted(manifest.tensors, key=lambda record: record.name)
    tensors = tuple(_package_tensor(package, record, referenced) for record in records)
    return OpenWeights(source, "package", manifest.source.commit, tensors, tuple(notes))


def _head_note(package: Package) -> list[str]:
    """A line about the share of the output head in the bytes that a pass of the draft reads."""
    head, draft = head_bytes(package, is_draft=True), package_bytes(package, is_draft=True)
    kinds = {"int8": "MXINT8", "exact": "all bits of the exact weights", "keep": "16 bits", "quantize": "4 bits"}
    kind = kinds[package.manifest.options.lm_head]
    screens = [level.screen for level in package.manifest.levels if level.kind == "self-draft"]
    if screens and described_package(package) and (screened := screened_bytes(package, screens[0])):
        head, draft = screened, draft - head + screened
        kind = f"{'4 bits' if screens[0] is None else 'a screen'}, and the target's rows that these let through"
    if not head or draft <= head:
        return []
    return [
        f"the output head is {head:,} of the {draft:,} bytes that a pass of the draft reads ({head / draft:.0%}): "
        f"{kind}."
    ]


def _package_tensor(
    package: Package, record: TensorRecord, referenced: Mapping[str, SourceTensor] | None
) -> WeightTensor:
    """A tensor with the draft that the package stores of it; `referenced` has the target where the package lacks it."""
    stack, num_bytes = record.stack, sum(array.num_bytes for array in tensor_arrays(record))
    if record.codec == "bsfp":
        if stack is None:
            return _bsfp_matrix(package, record)
        whole = replace(
            _bsfp_matrix(package, record, 0),
            name=record.name,
            shape=stack.shape,
            num_stored_bytes=num_bytes,
            matrices=lambda: [_bsfp_matrix(package, record, number) for number in range(stack.num_experts)],
        )
        return stacked(whole, stack)
    if record.carried is not None and referenced is None:
        return _carried_tensor(package, record)
    original = package.kept(record) if referenced is None else _referenced(package, record, referenced)
    tensor = replace(source_tensor(original, record.is_quantized, record.reason, None), codec=record.codec)
    if record.scaled is not None:
        weights = _with_draft(decoded(tensor, package.fp8(record, referenced)), package, record)
        return replace(tensor, matrices=lambda: [weights])
    if record.carried is not None:
        return tensor
    if stack is None or record.codec != "mxfp4":
        return _with_draft(tensor, package, record)
    sources = with_experts(tensor, stack)

    def experts() -> list[WeightTensor]:
        assert sources.matrices is not None
        return [_with_draft(each, package, record, number) for number, each in enumerate(sources.matrices())]

    drafted = stacked(replace(tensor, matrices=experts, num_stored_bytes=num_bytes), stack)
    return replace(drafted, rows=tensor.rows)


def _bsfp_matrix(package: Package, record: TensorRecord, expert: int | None = None) -> WeightTensor:
    """A BSFP matrix, or one expert of a stack."""
    stored = package.bsfp(record, expert)

    def rows(start: int, stop: int) -> U16:
        return stored.target_rows(start, stop, decode_bsfp)

    tensor = WeightTensor(
        name=record.name if expert is None else f"{record.name}[{expert}]",
        dtype=record.dtype,
        shape=stored.shape,
        float_format=stored.table.float_format,
        is_quantized=True,
        reason=record.reason,
        rows=rows,
        release=lambda start, stop: None,
        codec="bsfp",
        note=f"rescaled by {stored.rescale_factor:.6g}: not lossless" if stored.rescale_factor != 1.0 else None,
    )
    return _with_draft(tensor, package, record, expert)


def _with_draft(
    tensor: WeightTensor, package: Package, record: TensorRecord, expert: int | None = None
) -> WeightTensor:
    """A matrix, or one expert of a stack, with the draft that the package stores of it; what is kept has none."""
    if not record.is_quantized:
        return tensor
    stored = package.draft(record, expert)

    def release(start: int, stop: int) -> None:
        tensor.release(start, stop)
        if expert is None:
            package.release(record, start, stop)
        else:
            package.release_expert(record, expert)

    return replace(tensor, release=release, num_stored_bytes=stored.num_bytes, draft_rows=stored.draft_rows)


def _carried_tensor(package: Package, record: TensorRecord) -> WeightTensor:
    """A tensor of the source's own MXFP4 bytes, by experts."""
    rebuilt, num_rows = RebuiltTensor(package, record), record.shape[1]

    def rows(start: int, stop: int) -> U16:
        found = [rebuilt.rows(number * num_rows, (number + 1) * num_rows) for number in range(start, stop)]
        return cast(U16, np.stack(found).reshape(stop - start, *record.shape[1:]))  # bytes, which nobody counts

    def release(start: int, stop: int) -> None:
        for number in range(start, stop):
            package.release_expert(record, number)

    return WeightTensor(
        name=record.name,
        dtype=record.dtype,
        shape=tuple(record.shape),
        float_format=None,
        is_quantized=True,
        reason=record.reason,
        rows=rows,
        release=release,
        codec=record.codec,
        num_stored_bytes=sum(array.num_bytes for array in tensor_arrays(record)),
        note=record.reason,
    )


def _referenced(package: Package, record: TensorRecord, tensors: Mapping[str, SourceTensor]) -> SourceTensor:
    tensor = tensors.get(record.name)
    if tensor is None or (tensor.dtype, list(tensor.shape)) != (record.dtype, record.shape):
        found = "is missing" if tensor is None else f"is {tensor.dtype} {list(tensor.shape)}"
        raise PackageError(
            f"{package.manifest.source.id}: tensor {record.name} {found}; {package.root} was converted from "
            f"{record.dtype} {record.shape}. Restore the source, or convert again."
        )
    return tensor
