"""Arrays of a package on a device, in the memory that kernels want: those of a layer's experts adjoin."""

from collections.abc import Iterable, Sequence

import torch

from mxconv.gpu.streamed_file import stream_file
from mxconv.package.package import Package, inside
from mxconv.progress import Progress

TORCH_DTYPES = {"U8": torch.uint8, "I8": torch.int8, "BF16": torch.int16}


def stream_arrays(
    package: Package, runs: Iterable[Sequence[str]], device: torch.device, progress: Progress
) -> dict[str, torch.Tensor]:
    """Arrays by name on the device, with dtype and shape.

    Args:
        package: where they are.
        runs: their names; those of a run adjoin, and are as long as each other.
        device: where to.
        progress: told how many bytes have been hashed and copied.

    Raises:
        PackageError: a file is not what the manifest says.
    """
    flat: dict[str, torch.Tensor] = {}
    for run in runs:
        counts = [package.arrays[name].num_bytes for name in run]
        buffer = torch.empty(sum(counts), dtype=torch.uint8, device=device)
        flat |= zip(run, torch.split(buffer, counts), strict=True)
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
