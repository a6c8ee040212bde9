"""A package's quantized matrices on a device; the files' hashes are checked while their arrays are copied."""

import re
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.codecs.e2m1 import VALUES
from mxconv.errors import CodecError, ModelError, PackageError
from mxconv.gpu.device import checked_device, require_room
from mxconv.gpu.fragments import DTYPES, draft_fragments
from mxconv.gpu.self_check import kernels_work
from mxconv.gpu.weight import (
    BsfpWeight,
    EightBitWeight,
    FourBitWeight,
    StackedWeight,
    Weight,
    uploaded_weight,
)
from mxconv.package.manifest import Manifest
from mxconv.package.package import Package, inside
from mxconv.package.package_folder import find_package
from mxconv.package.stored import place_of, tensor_arrays
from mxconv.package.tensor_record import TensorRecord
from mxconv.progress import Progress, silent

ON_HOST = ("row_shifts", "escape_offsets")  # parts that other arrays are made from
OF_DRAFT = ("codes", "elements", "scales")
PIECE_BYTES = 16 << 20  # copied at a time, by way of the host's memory
TORCH_DTYPES = {"U8": torch.uint8, "I8": torch.int8, "BF16": torch.int16}
OF_AN_EXPERT = re.compile(r"(?P<experts>.+\.experts)\.(?P<number>\d+)\.(?P<matrix>.+)")

Parts = Mapping[str, torch.Tensor]  # arrays of a tensor, by the last part of their names


class GpuPackage:
    """The matrices of a package on a device; its files are closed again.

    `weights` has them by the names of their tensors, and `stacks` has those of experts by the names of `ExpertGroup`s,
    whether the package stacks them or not.
    """

    def __init__(
        self,
        package: str | Path,
        device: str | torch.device = "cuda",
        level: Literal["target", "draft"] = "target",
        residuals: Literal["device", "host"] = "device",
        progress: Progress = silent,
    ) -> None:
        """Load it.

        Args:
            package: a folder, or a Hub id.
            device: as for `checked_device`.
            level: "target", of a BSFP package: the exact weights with their draft; "draft": 4 bits alone.
            residuals: "host" leaves eight residual bits of exact weights in pinned memory of the host: kernels read
                them over the bus, once a pass of the target. Those of experts stay on the device.
            progress: receives the number of bytes that were hashed and copied.

        Raises:
            MxconvError: no such device, no room on it, or a package that is damaged or has no such level, or nothing
                that could stay on the host.
        """
        self.device = checked_device(device)
        self.weights: dict[str, Weight] = {}
        self.stacks: dict[str, StackedWeight] = {}
        with Package(find_package(package)) as opened:
            self.manifest: Manifest = opened.manifest
            records = [each for each in opened.manifest.tensors if each.codec != "keep"]
            _check_level(opened, records, level)
            if residuals not in ("device", "host"):
                raise ModelError(f"{opened.root}: residuals {residuals!r}; device or host is required.")
            groups, alone = expert_groups(records)
            on_host = _on_host(opened, alone, self.device) if (level, residuals) == ("target", "host") else []
            left = {f"{each.stem}.residual_low" for each in on_host}
            sizes = {name: opened.arrays[name].num_bytes for each in records for name in _copied(each, level)}
            arrays = {name: size for name, size in sizes.items() if name not in left}
            draft = sum(opened.arrays[name].num_bytes for each in records for name in _copied(each, "draft"))
            most_left = max((sizes[name] for name in left), default=0)
            require_room(
                self.device,
                sum(arrays.values()) + _made(opened, alone, groups, level) + most_left,
                str(opened.root),
                f"The 4-bit draft alone is {draft / 1e9:.2f} GB: level='draft'." if level == "target" else
                "Free memory, or take a smaller model.",
            )  # fmt: skip
            parts: dict[str, dict[str, torch.Tensor]] = {each.stem: {} for each in records}
            for name, tensor in _on_device(opened, arrays, left, self.device, progress).items():
                stem, _, part = name.rpartition(".")
                parts[stem][part] = tensor
            for record in alone:
                own = parts.pop(record.stem)
                if record.codec == "mxint8":
                    shape = opened.mxint8(record).shape
                    self.weights[record.name] = EightBitWeight(own["elements"], own["scales"], shape)
                else:
                    is_left = record in on_host
                    self.weights[record.name] = _weight(opened, record, own, self.device, residuals_on_host=is_left)
            for group in groups:
                own_parts = {each.stem: parts.pop(each.stem) for each in group.records}
                self.stacks[group.name] = StackedWeight([
                    _weight(opened, each, own_parts[each.stem], self.device, expert, group)
                    for each, expert in group.members
                ])  # fmt: skip

    @property
    def num_bytes(self) -> int:
        """Bytes on the device."""
        weights = sum(each.num_bytes for each in self.weights.values())
        return weights + sum(each.num_bytes for each in self.stacks.values())


@dataclass(frozen=True)
class ExpertGroup:
    """The experts of one layer in their order: matrices of one shape and format, in one tensor or in one each."""

    name: str  # of the tensor, or of each expert's tensor with `*` in place of its number
    members: tuple[tuple[TensorRecord, int | None], ...]  # a tensor, and the number of the expert in it

    @property
    def records(self) -> list[TensorRecord]:
        """The tensors, once each."""
        return list({record.name: record for record, _ in self.members}.values())

    @property
    def num_planes(self) -> int:
        """Residual bits beyond eight of the expert that has most."""
        return max((each.residual_bits for record in self.records for each in record.all_segments), default=8) - 8


def expert_groups(records: Iterable[TensorRecord]) -> tuple[list[ExpertGroup], list[TensorRecord]]:
    """Groups of experts among quantized tensors, and the tensors that are in none."""
    groups: list[ExpertGroup] = []
    alone: list[TensorRecord] = []
    numbered: dict[str, dict[int, TensorRecord]] = {}
    for record in records:
        match = OF_AN_EXPERT.fullmatch(record.name)
        if (stack := record.stack) is not None:
            if record.carried is None or record.carried.part == "codes":
                groups.append(ExpertGroup(record.stem, tuple((record, each) for each in range(stack.num_experts))))
        elif match is not None:
            name = f"{match['experts']}.*.{match['matrix']}"
            numbered.setdefault(name, {})[int(match["number"])] = record
        else:
            alone.append(record)
    for name, found in numbered.items():
        kinds = {(tuple(record.shape), record.codec, record.dtype) for record in found.values()}
        if sorted(found) == list(range(len(found))) and len(kinds) == 1:
            groups.append(ExpertGroup(name, tuple((found[number], None) for number in range(len(found)))))
        else:
            alone += found.values()
    return groups, alone


def _weight(
    package: Package,
    record: TensorRecord,
    parts: Parts,
    device: torch.device,
    expert: int | None = None,
    group: ExpertGroup | None = None,
    residuals_on_host: bool = False,
) -> BsfpWeight | FourBitWeight:
    """Make a quantized matrix, or one expert of a stack, of arrays that are on the device already.

    `parts` has all that kernels read; of BSFP codes and scales alone make the draft.

    Raises:
        PackageError: its escape lists contradict themselves.
    """
    shape, tiles = place_of(record, expert)
    held = None if record.codec == "mxfp4" else package.bsfp(record, expert)
    if held is None or "escape_counts" not in parts:
        magnitudes = VALUES[:8] if held is None else held.table.signed_levels[:8]
        return FourBitWeight(draft_fragments(shape, parts["codes"][tiles], parts["scales"][tiles], magnitudes))
    first = int(package.arrays[f"{record.stem}.escape_offsets"].array()[tiles.start])
    escapes = slice(first, first + len(held.packed.escape_high))
    mine = {
        name: part[escapes if name in ("escape_positions", "escape_high") else tiles] for name, part in parts.items()
    }
    try:
        return uploaded_weight(held, device, mine, group.num_planes if group is not None else 0, residuals_on_host)
    except CodecError as error:
        raise PackageError(f"{package.root}: tensor {record.name}: {error}") from error


def _on_device(
    package: Package,
    names: Collection[str],
    left: Collection[str],
    device: torch.device,
    progress: Progress,
) -> dict[str, torch.Tensor]:
    """Copy arrays to a device while a thread hashes their files.

    Args:
        package: where they are stored.
        names: of arrays.
        left: names of arrays that are copied later, matrix by matrix; their files are hashed too.
        device: the destination.
        progress: receives the number of bytes that were hashed.

    Raises:
        PackageError: a file has another hash than the manifest says; what was copied must not be used.
    """
    paths = {package.arrays[name].path for name in (*names, *left)}
    files = [each for each in package.manifest.files if inside(package.root, each.path) in paths]
    total, done = sum(each.num_bytes for each in files), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("load package", done, total)

    copied: dict[str, torch.Tensor] = {}
    with ThreadPoolExecutor(1) as pool:
        hashes = [pool.submit(sha256_file, inside(package.root, each.path), advance) for each in files]
        for name in names:
            array = package.arrays[name]
            flat = torch.empty(array.num_bytes, dtype=torch.uint8, device=device)
            stored = array.array().reshape(-1).view(np.uint8)
            for first in range(0, len(stored), PIECE_BYTES):
                piece = stored[first : first + PIECE_BYTES].copy()
                flat[first : first + len(piece)].copy_(torch.from_numpy(piece))
            copied[name] = flat.view(TORCH_DTYPES[array.dtype]).view(array.shape)
        for each, found in zip(files, hashes, strict=True):
            if found.result() != each.sha256:
                raise PackageError(
                    f"{inside(package.root, each.path)}: SHA-256 {found.result()}; the manifest says {each.sha256}. "
                    "The file is damaged; convert again."
                )
    return copied


def _on_host(package: Package, alone: Iterable[TensorRecord], device: torch.device) -> list[TensorRecord]:
    """Matrices whose residuals can stay on the host."""
    exact = [each for each in alone if each.codec == "bsfp"]
    tables = [package.bsfp(each).table for each in exact]
    kinds = {(DTYPES[table.float_format.name], table.residual_bits - 8) for table in tables}
    if not exact or not all(kernels_work(device, *kind) for kind in kinds):
        raise ModelError(
            f"{package.root}: residuals='host': {len(exact)} exact matrices alone, on {device}; at least one is "
            "required, and kernels that work there. Leave it out."
        )
    return exact


def _check_level(package: Package, records: list[TensorRecord], level: str) -> None:
    if not records:
        raise ModelError(f"{package.root}: no quantized matrix; at least one is required. Convert another model.")
    if level not in ("target", "draft"):
        raise ModelError(f"{package.root}: level {level!r}; target or draft is required.")
    if level == "target" and (codec := package.manifest.options.codec) != "bsfp":
        raise ModelError(
            f"{package.root}: the target of an {codec} package is its 16-bit source; a BSFP package is required for "
            "level='target'. Load the source with transformers, and this package with level='draft'."
        )
    rescaled = [each.name for each in records if each.is_rescaled]
    if rescaled:
        raise ModelError(
            f"{package.root}: tensor {rescaled[0]} was rescaled; exact BSFP is required on a GPU. Convert again "
            "without --outliers rescale."
        )


def _copied(record: TensorRecord, level: str) -> list[str]:
    """Names of a tensor's arrays that go to the device unchanged."""
    names = [array.name for array in tensor_arrays(record)]
    parts = {name: name.rpartition(".")[2] for name in names}
    return [name for name in names if (parts[name] in OF_DRAFT if level == "draft" else parts[name] not in ON_HOST)]


def _made(package: Package, alone: Iterable[TensorRecord], groups: Iterable[ExpertGroup], level: str) -> int:
    """The most bytes that arrays made of tensors take besides their own.

    Those of escapes, and what is moved into another order at a time: a matrix, or a stack, of which each expert is.
    """
    escapes, largest = 0, 0
    for records, times in (*(([each], 1) for each in alone), *((group.records, 2) for group in groups)):
        moved = 0
        for record in records:
            if record.codec == "mxint8":
                continue
            size = {name.rpartition(".")[2]: package.arrays[name].num_bytes for name in _copied(record, level)}
            moved += times * size.get("codes", 0)  # carried scales are a tensor of their own
            if record.codec == "bsfp" and level == "target":
                moved += times * (size["residual_low"] + size.get("residual_high", 0))
                escapes += 8 * size["escape_counts"] + 4 * size["escape_positions"]  # more than `firsts` and `escapes`
        largest = max(largest, moved)
    return escapes + largest
