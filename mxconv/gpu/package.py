"""A package's quantized matrices on a device, streamed there file by file, hashes checked."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from mxconv.errors import ModelError
from mxconv.gpu.device import checked_device
from mxconv.gpu.expert_group import ExpertGroup, expert_groups
from mxconv.gpu.memory import require_room
from mxconv.gpu.streamed_arrays import stream_arrays
from mxconv.package.manifest import Manifest, TensorRecord
from mxconv.package.package import Package
from mxconv.package.package_folder import find_package
from mxconv.package.tensor_arrays import tensor_arrays
from mxconv.progress import Progress, silent

if TYPE_CHECKING:  # imported once a device was found: without Triton it cannot be
    from mxconv.kernels.triton.expert_stack import ExpertStack
    from mxconv.kernels.triton.weight import Activations, Weight

ON_HOST = ("row_shifts", "escape_offsets")  # parts of which other arrays are made
OF_DRAFT = ("codes", "elements", "scales")
ADJOINING = (*OF_DRAFT, "residual_low")  # of experts: as long for each of them


class GpuPackage:
    """The matrices of a package by the names of their tensors, in `weights`. The package's files are closed again.

    Those of experts are in `stacks`, by the names of `ExpertGroup`s, whether the package stacks them or not.
    """

    def __init__(
        self,
        package: str | Path,
        device: str | torch.device = "cuda",
        level: Literal["target", "draft"] = "target",
        activations: "Activations" = "bf16",
        progress: Progress = silent,
    ) -> None:
        """Load it.

        Args:
            package: a folder, or a Hub id.
            device: as for `checked_device`.
            level: "target", of a BSFP package: the exact weights, and their draft in them; "draft": 4 bits alone.
            activations: of drafts.
            progress: told how many bytes have been hashed and copied.

        Raises:
            MxconvError: no such device, no room on it, or a package that is damaged or has no such level.
        """
        self.device = checked_device(device)
        from mxconv.gpu.stored_weight import stored_stack, stored_weight
        from mxconv.kernels.triton.eight_bit_weight import EightBitWeight

        with Package(find_package(package)) as opened:
            self.manifest: Manifest = opened.manifest
            records = [each for each in opened.manifest.tensors if each.codec != "keep"]
            _check_level(opened, records, level)
            arrays = {name: opened.arrays[name].num_bytes for each in records for name in _copied(each, level)}
            draft = sum(opened.arrays[name].num_bytes for each in records for name in _copied(each, "draft"))
            require_room(
                self.device,
                sum(arrays.values()) + sum(_made(opened, each) for each in records if level == "target"),
                str(opened.root),
                f"The 4-bit draft alone is {draft / 1e9:.2f} GB: level='draft'." if level == "target" else
                "Free memory, or take a smaller model.",
            )  # fmt: skip
            groups, alone = expert_groups(records)
            streamed = stream_arrays(opened, _runs(arrays, groups), self.device, progress)
            parts: dict[str, dict[str, torch.Tensor]] = {each.stem: {} for each in records}
            for name in arrays:
                stem, _, part = name.rpartition(".")
                parts[stem][part] = streamed.pop(name)
            self.weights: dict[str, Weight] = {}
            for each in alone:
                own = parts.pop(each.stem)
                if each.codec == "mxint8":
                    self.weights[each.name] = EightBitWeight(own["elements"], own["scales"], opened.mxint8(each).shape)
                else:
                    self.weights[each.name] = stored_weight(opened, each, own, self.device, activations)
            self.stacks: dict[str, ExpertStack] = {}
            for group in groups:
                parts_of = {each.stem: parts.pop(each.stem) for each in group.records}
                self.stacks[group.name] = stored_stack(opened, group, parts_of, self.device, activations)

    @property
    def num_bytes(self) -> int:
        """On the device."""
        weights = sum(each.num_bytes for each in self.weights.values())
        return weights + sum(each.num_bytes for each in self.stacks.values())


def _runs(arrays: Iterable[str], groups: Iterable[ExpertGroup]) -> list[list[str]]:
    """The arrays, those that are to adjoin together."""
    adjoining = [
        [f"{record.stem}.{part}" for record in group.records]
        for group in groups if len(group.records) > 1 for part in ADJOINING
    ]  # fmt: skip
    wanted = set(arrays)
    runs = [run for run in adjoining if wanted.issuperset(run)]
    in_runs = {name for run in runs for name in run}
    return [*runs, *([name] for name in arrays if name not in in_runs)]


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
    """The arrays of a tensor that go to the device as they are."""
    names = [array.name for array in tensor_arrays(record)]
    parts = {name: name.rpartition(".")[2] for name in names}
    return [name for name in names if (parts[name] in OF_DRAFT if level == "draft" else parts[name] not in ON_HOST)]


def _made(package: Package, record: TensorRecord) -> int:
    """At most so many bytes are made of a tensor's escape lists."""
    from mxconv.kernels.triton.arrays.patches import most_bytes

    if record.codec != "bsfp":
        return 0
    counts, escapes = (package.arrays[f"{record.name}.escape_{part}"] for part in ("counts", "positions"))
    return most_bytes(counts.num_bytes, escapes.num_bytes)
