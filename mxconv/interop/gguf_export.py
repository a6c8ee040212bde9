"""A package as GGUF, for llama.cpp: the 16-bit target, the MXFP4 draft, or both.

    export_gguf(Path("package"), Path("model-MXFP4.gguf"))   # one file: the draft, or the level asked for
    export_gguf(Path("package"), Path("model"))              # a folder: model-BF16.gguf and model-MXFP4.gguf

Every number is carried over, none is rounded: 16-bit patterns and 4-bit codes are those of the package. Rows of queries
and keys change places where llama.cpp wants them in another order, and vectors become F32.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from math import prod
from pathlib import Path
from typing import BinaryIO

import gguf
import numpy as np

from mxconv.engine.stored_weights import package_config
from mxconv.errors import PackageError
from mxconv.gguf.metadata import Metadata, read_metadata
from mxconv.interop.exported import Export, ExportedTensor, advancing, opened_model, refuse_fp8
from mxconv.interop.gguf_tensors import Level, level_tensors
from mxconv.package.package import Package
from mxconv.progress import Progress, silent
from mxconv.system.disk import check_output, write_output

NO_BSFP = "GGUF has no type for the BSFP draft"


def export_gguf(
    package: Path, output: Path, *, force: bool = False, progress: Progress = silent, level: Level | None = None
) -> Export:
    """Write GGUF files.

    Args:
        package: a package.
        output: a file name that ends in .gguf, or a folder, which is made where it does not exist.
        force: overwrite files.
        progress: told about every piece.
        level: target or draft. None: both into a folder; into a file the draft, where it has a GGUF type.

    Raises:
        MxconvError: GGUF cannot hold the model or the level, or a file exists.
    """
    begin = time.perf_counter()
    with opened_model(package) as (opened, weights), ExitStack() as stack:
        refuse_fp8(opened, "GGUF")
        files = _plan(opened, output, level)
        for path in files:
            if path.parent.is_dir() or path.parent != output:
                check_output(path, force)
        metadata = read_metadata(opened.root, package_config(opened))
        contents = {path: level_tensors(opened, weights, metadata, which) for path, which in files.items()}
        tensors = [tensor for of_file, _ in contents.values() for tensor in of_file]
        advance = advancing(progress, sum(map(_num_bytes, tensors)))
        if output.suffix != ".gguf" and not output.is_dir():
            _make_folder(output, stack)
        for path, which in files.items():
            scale_rule = opened.manifest.options.scale_rule if which == "draft" else None
            write_output(path, partial(_write, metadata, contents[path][0], path.stem, scale_rule, advance))
        notes = list(metadata.notes)
        if opened.manifest.options.codec == "bsfp" and level is None:
            notes.append(f"{NO_BSFP}: only the target was written. For a draft, quantize with --codec mxfp4.")
        notes += [note for _, of_tensors in contents.values() for note in of_tensors]
    return Export(
        format="gguf",
        files=[path.name if path.parent == output else str(path) for path in files],
        num_bytes=sum(path.stat().st_size for path in files),
        num_tensors=len(tensors),
        seconds=time.perf_counter() - begin,
        notes=tuple(dict.fromkeys(notes)),
    )


def _plan(package: Package, output: Path, level: Level | None) -> dict[Path, Level]:
    """Which level goes into which file."""
    manifest = package.manifest
    has_draft = manifest.options.codec == "mxfp4"
    if level == "draft" and not has_draft:
        raise PackageError(
            f"{package.root}: a BSFP package; {NO_BSFP}. Export --level target, which is exact, or convert the source "
            "with --codec mxfp4 for a draft."
        )
    if output.suffix == ".gguf":
        return {output: level or ("draft" if has_draft else "target")}
    name = output.resolve().name
    files: dict[Path, Level] = {}
    if level != "draft":
        files[output / f"{name}-{manifest.source.dtype}.gguf"] = "target"
    if has_draft and level != "target":
        files[output / f"{name}-MXFP4.gguf"] = "draft"
    return files


def _make_folder(path: Path, stack: ExitStack) -> None:
    """Make a folder, which leaves with the stack while it is empty: after an error before the first file was whole."""
    try:
        path.mkdir()
    except OSError as error:
        raise PackageError(
            f"{path}: cannot be made a folder ({error.strerror}); one is required. Choose another output, or a name "
            "that ends in .gguf for one file."
        ) from error

    @stack.callback
    def remove_if_empty() -> None:
        with suppress(OSError):
            path.rmdir()


def _write(
    metadata: Metadata,
    tensors: Sequence[ExportedTensor],
    name: str,
    scale_rule: str | None,
    advance: Callable[[int], None],
    path: Path,
) -> None:
    """Write one file: keys and tensor list by the gguf library, tensors streamed after them. `scale_rule` is a
    draft's."""
    writer = gguf.GGUFWriter(path, metadata.architecture.name)
    try:
        writer.add_name(name)
        if scale_rule is not None:
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE)  # the only MXFP4 that it has
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            writer.add_string("mxconv.scale_rule", scale_rule)
        else:
            is_bf16 = any(tensor.dtype == "BF16" and len(tensor.shape) > 1 for tensor in tensors)
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if is_bf16 else gguf.LlamaFileType.MOSTLY_F16)
        metadata.add_to(writer)
        for tensor in tensors:
            kind, num_bytes = gguf.GGMLQuantizationType[tensor.dtype], _num_bytes(tensor)
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), num_bytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        file: BinaryIO = writer.fout[0]
        for tensor in tensors:
            writer.write_padding(file, file.tell())
            tensor.write(file, advance)
        writer.write_padding(file, file.tell())
    finally:
        writer.close()


def _num_bytes(tensor: ExportedTensor) -> int:
    block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[tensor.dtype]]
    return prod(tensor.shape) // block * block_bytes
