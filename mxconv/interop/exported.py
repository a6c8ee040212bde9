"""Shared by all exporters: their result, refusals, the hash of what they read, and a folder in the Hugging Face layout.

The tensors of a folder stream from their source through slices of rows, so memory stays flat. Everything is written
into a hidden folder beside the output, which then takes its name: the output is whole or not there.
`mxconv_export.json` says where the folder came from; it is also how `--force` knows a folder that it may replace.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mxconv import __version__
from mxconv.arch.whole_model import DRAFT_HEAD_KEYS
from mxconv.checkpoint.folder import companions
from mxconv.checkpoint.regular_file import read_json_object
from mxconv.conversion.options import DEFAULT_MAX_SHARD_BYTES
from mxconv.drafts.kind import reader_of
from mxconv.engine.stored_weights import package_faults
from mxconv.errors import ModelError, MxconvError, PackageError
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package, inside
from mxconv.package.shard_layout import plan_layout
from mxconv.package.stored import StoredArray
from mxconv.progress import Progress
from mxconv.report.open_weights import OpenWeights
from mxconv.report.sources import package_weights
from mxconv.system.disk import check_folder, put_in_place, recover

RECORD = "mxconv_export.json"
QUANTIZATION = ("quantization_config", "compression_config", "quantization")  # members of config.json
TORCH_DTYPES = {"BF16": "bfloat16", "F16": "float16"}


@dataclass(frozen=True)
class Export:
    """A finished export.

    Args:
        format: as `mxconv export --to` names it.
        files: the files written; of a folder, names relative to it.
        num_bytes: of all of them.
        num_tensors: in all of them.
        seconds: taken.
        notes: what a user should know, one sentence each: tensors that the format cannot hold at 4 bits, and why.
    """

    format: str
    files: list[str]
    num_bytes: int
    num_tensors: int
    seconds: float
    notes: tuple[str, ...] = ()


class SourceHash:
    """The hash of a tensor that is read once, piece by piece, compared with the recorded one."""

    def __init__(self, package: Package, record: TensorRecord) -> None:
        self._package, self._record = package, record
        self._digest = hashlib.sha256()

    def add(self, piece: NDArray[Any], is_last: bool) -> None:
        """Hash the next piece.

        Raises:
            PackageError: it was the last, and what was read is not what was recorded.
        """
        record = self._record
        self._digest.update(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
        if is_last and self._digest.hexdigest() != record.sha256 and not record.is_rescaled:
            raise PackageError(
                f"{self._package.root}: tensor {record.name}: SHA-256 {self._digest.hexdigest()[:16]}...; the recorded "
                f"{record.sha256[:16]}... is required. The package or its source is damaged; run mxconv verify."
            )


@dataclass(frozen=True)
class ExportedTensor:
    """A tensor as a file will hold it."""

    name: str
    dtype: str  # a type of the file's format
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[NDArray[Any]]] = field(repr=False)  # adjoining, in order

    def write(self, file: BinaryIO, advance: Callable[[int], None]) -> None:
        """Write all pieces; `advance` is told each one's bytes."""
        for piece in self.pieces():
            advance(file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data))


def advancing(progress: Progress, total: int) -> Callable[[int], None]:
    """A function that takes the bytes of each piece and tells how many of `total` are written."""
    done = 0

    def advance(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress("export", done, total)

    return advance


@contextmanager
def opened_model(package: Path) -> Iterator[tuple[Package, OpenWeights]]:
    """Open a package of a whole model, and its 16-bit weights where they lie.

    Raises:
        MxconvError: it has no config.json, without which no library loads a folder, or lacks a tensor of the model that
            this describes.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(Package(package))
        if all(record.path != "config.json" for record in opened.manifest.files):
            raise MxconvError(
                f"{package}: has no config.json; other libraries need one. Convert the model's folder, not one file."
            )
        for _, fault in package_faults(opened):
            raise ModelError(f"{package}: {fault}")
        yield opened, package_weights(str(package), opened, stack)


def refuse_fp8(package: Package, what: str) -> None:
    """Raise MxconvError where the package's target is FP8; the first such tensor is named."""
    for record in package.manifest.tensors:
        if record.scaled is not None:
            raise MxconvError(
                f"{package.root}: tensor {record.name} is {record.dtype} with block scales; {what} is made of 16 bits "
                "alone. Export --to safetensors --level target, which has the FP8 weights."
            )


def write_model_folder(
    output: Path,
    format_name: str,
    package: Package,
    tensors: Mapping[str, tuple[ExportedTensor, ...]],
    *,
    force: bool,
    progress: Progress,
    config: Mapping[str, Any] | None = None,
    record: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Export:
    """Write a folder.

    Args:
        output: does not exist, unless it is an export and `force` is set.
        format_name: as `--to` names it.
        package: where configuration, tokenizer and licence come from.
        tensors: by their name in the source; the tensors that stand for one stay in one file.
        force: replace an earlier export.
        progress: told about every piece.
        config: further members of config.json, which is otherwise the package's, as far as that holds.
        record: further members of mxconv_export.json.
        notes: what the user should be told.

    Raises:
        PackageError: the output exists, cannot be written, or a tensor is refused while it is read.
    """
    begin = time.perf_counter()
    recover(output)
    check_folder(output, RECORD, "export", force)
    output = output.absolute()
    partial = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        _write_tensors(partial, tensors, progress)
        _write_others(partial, package, config or {}, {"format": format_name, **record})
        files = sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file())
        num_bytes = sum((partial / name).stat().st_size for name in files)
        check_folder(output, RECORD, "export", force)
        put_in_place(partial, output)
    except OSError as error:
        raise PackageError(
            f"{output}: cannot be written ({error.strerror or error}); a writable place with enough space is "
            "required. Check space and permissions."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    num_tensors = sum(len(parts) for parts in tensors.values())
    return Export(format_name, files, num_bytes, num_tensors, time.perf_counter() - begin, notes)


def _write_others(folder: Path, package: Package, config: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write the files beside the weights: the package's, a configuration that is true of them, and where all are
    from."""
    manifest = package.manifest
    for name in companions(each.path for each in manifest.files):
        if name != RECORD and not (folder / name).exists():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(inside(package.root, name), folder / name)
    true = _true_config(package) | dict(config)
    if true != read_json_object(folder / "config.json", unique_keys=False):
        (folder / "config.json").write_text(json.dumps(true, indent=2) + "\n", encoding="utf-8")
    members = {
        "created_by": f"mxconv {__version__}",
        "source": {"id": manifest.source.id, "commit": manifest.source.commit},
        "manifest_sha256": manifest.manifest_sha256,
        **record,
    }
    (folder / RECORD).write_text(json.dumps(members, indent=1) + "\n", encoding="utf-8")


def _true_config(package: Package) -> dict[str, Any]:
    """The source's config.json as far as it holds of what is exported: with the dtype of its weights, and without what
    a quantizer left behind, unless packed weights are still there."""
    manifest = package.manifest
    config = read_json_object(inside(package.root, "config.json"), unique_keys=False)
    is_head = reader_of(config) is not None or any(key in config for key in DRAFT_HEAD_KEYS)
    added = set() if is_head else {"dtype"}
    is_packed = any(record.scaled is not None or record.carried is not None for record in manifest.tensors)
    for section in _sections(config):
        for key in () if is_packed else QUANTIZATION:
            section.pop(key, None)
        if manifest.source.cast or section is config or section is config.get("text_config"):
            for key in {"dtype", "torch_dtype"} & section.keys() or (added if section is config else ()):
                section[key] = TORCH_DTYPES[manifest.source.dtype]
    return config


def _sections(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A configuration and those of the parts that it has, at any depth."""
    yield config
    for key, value in config.items():
        if isinstance(value, dict) and key not in QUANTIZATION:
            yield from _sections(value)


def _write_tensors(folder: Path, tensors: Mapping[str, tuple[ExportedTensor, ...]], progress: Progress) -> None:
    """Write safetensors files, each from its start to its end, and their index."""
    groups = {name: tuple(StoredArray(t.name, t.dtype, t.shape) for t in parts) for name, parts in tensors.items()}
    layout = plan_layout({"model": groups}, DEFAULT_MAX_SHARD_BYTES, format_name="pt")
    by_name = {tensor.name: tensor for parts in tensors.values() for tensor in parts}
    advance = advancing(progress, sum(shard.num_bytes for shard in layout.shards))
    for shard in layout.shards:
        with (folder / shard.file_name).open("xb") as file:
            advance(file.write(shard.header))
            for name, offset in sorted(shard.offsets.items(), key=lambda place: place[1]):
                assert file.tell() == offset, f"{name} begins at {file.tell()}, not at {offset}"
                by_name[name].write(file, advance)
            assert file.tell() == shard.num_bytes
            file.flush()
            os.fsync(file.fileno())
    for name, content in layout.indexes.items():
        (folder / name).write_bytes(content)
