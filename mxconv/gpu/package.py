"""A package's quantized matrices on a device, streamed there file by file, hashes checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from mxconv.checkpoint.manifest import Manifest, TensorRecord
from mxconv.checkpoint.package import Package, inside
from mxconv.checkpoint.package_folder import find_package
from mxconv.checkpoint.tensor_arrays import tensor_arrays
from mxconv.errors import ModelError
from mxconv.gpu.device import checked_device
from mxconv.gpu.memory import require_room
from mxconv.gpu.streamed_file import stream_file
from mxconv.progress import Progress, silent

if TYPE_CHECKING:  # imported once a device was found: without Triton it cannot be
    from mxconv.kernels.triton.weight import Activations, Weight

ON_HOST = ("row_shifts", "escape_offsets")  # parts of which other arrays are made
OF_DRAFT = ("codes", "scales")
TORCH_DTYPES = {"U8": torch.uint8, "BF16": torch.int16}


class GpuPackage:
    """The matrices of a package by the names of their tensors, in `weights`. The package's files are closed again.

    Stacked experts and tensors that were kept as they are stay where they are: `left_out` names the stacks.
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
        from mxconv.gpu.stored_weight import stored_weight

        with Package(find_package(package)) as opened:
            self.manifest: Manifest = opened.manifest
            quantized = [each for each in opened.manifest.tensors if each.codec != "keep"]
            records = [each for each in quantized if each.stack is None and each.carried is None]
            self.left_out = [each.name for each in quantized if each.stack is not None or each.carried is not None]
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
            streamed = _stream(opened, arrays, self.device, progress)
            self.weights: dict[str, Weight] = {}
            for each in records:
                parts = {name.rpartition(".")[2]: streamed.pop(name) for name in _copied(each, level)}
                self.weights[each.name] = stored_weight(opened, each, parts, self.device, activations)

    @property
    def num_bytes(self) -> int:
        """On the device."""
        return sum(weight.num_bytes for weight in self.weights.values())


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

    counts, escapes = (package.arrays[f"{record.name}.escape_{part}"] for part in ("counts", "positions"))
    return most_bytes(counts.num_bytes, escapes.num_bytes)


def _stream(
    package: Package, num_bytes: Mapping[str, int], device: torch.device, progress: Progress
) -> dict[str, torch.Tensor]:
    """Arrays by name on the device, with dtype and shape."""
    flat = {name: torch.empty(count, dtype=torch.uint8, device=device) for name, count in num_bytes.items()}
    paths = {package.arrays[name].path for name in flat}
    files = [each for each in package.manifest.files if inside(package.root, each.path) in paths]
    total, done = sum(each.num_bytes for each in files), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress("load package", done, total)

    for each in files:
        path = inside(package.root, each.path)
        wanted = {name: tensor for name, tensor in flat.items() if package.arrays[name].path == path}
        stream_file(path, each.sha256, wanted, device, advance)
    return {
        name: tensor.view(TORCH_DTYPES[package.arrays[name].dtype]).view(package.arrays[name].shape)
        for name, tensor in flat.items()
    }
