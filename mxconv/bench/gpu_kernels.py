"""Products of one weight matrix with a few tokens on a GPU, against its read bandwidth and torch's BF16 product.

Each sample is a round: as many bytes are read as the matrix has, then the kernel multiplies, then `torch.matmul` does,
with the same tokens and BF16 weights. Fractions are medians of the rounds' ratios, so that a GPU whose clocks change
does not compare one state with another. All three go through copies that together exceed the L2 cache, and a figure is
the mean of a launch (gpu_clock.py). Everything that a product launches counts: rounding of activations to int8, and the
sum of splits.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from mxconv.bench.gpu_clock import GpuReadBandwidth, Launches, cache_bytes
from mxconv.bench.gpu_operands import LIBRARY, GpuOperand, GpuOperands, Product, check_gpu_exactness, check_gpu_weights
from mxconv.bench.kernel_result import ProductResult, summarize_product
from mxconv.bench.samples import spread
from mxconv.gpu.device import require_room

SMALL_SHAPE = (72, 416)  # partial tiles of rows, partial groups of columns
NUM_WARMUPS = 3
CACHE_MULTIPLE = 4  # the copies of a matrix together are at least this many L2 caches
MAX_COPIES = 128
MIN_LAUNCHES = 32  # of a sample on a GPU: some 0.3 ms, where events tell half a microsecond apart


@dataclass(frozen=True)
class GpuKernelResult(ProductResult):
    """A row of the GPU's table, against the library's BF16 product of the same rounds."""

    library_seconds: float  # median
    times_library: float  # median of the rounds' ratios: how many times as fast


@dataclass(frozen=True)
class KernelRound:
    """Figures of a few milliseconds."""

    seconds: float
    bandwidth: float  # bytes a second
    library_seconds: float


def bench_gpu_kernels(
    kernels: Sequence[str], num_tokens: Sequence[int], shape: tuple[int, int], device: torch.device, num_samples: int
) -> Iterator[GpuKernelResult]:
    """Measure each kernel x width, exactness first.

    Args:
        kernels: of `mxconv.bench.gpu_operands.KERNELS`.
        num_tokens: of a product.
        shape: (out_features, in_features).
        device: a GPU, or the CPU in Triton's interpreter.
        num_samples: rounds of each figure.

    Raises:
        MxconvError: too little memory, or a kernel computes something else than its bytes mean.
    """
    rotated = CACHE_MULTIPLE * cache_bytes(device)
    dense_bytes = 2 * shape[0] * shape[1]
    room = 4 * (max(rotated, dense_bytes) + dense_bytes)  # copies of two matrices, the array that is read, and checks
    require_room(device, room, "bench kernels", "Take fewer --out-features or --in-features.")
    operands, small = GpuOperands(shape, device), GpuOperands(SMALL_SHAPE, device)
    library = operands.make(LIBRARY)
    library_copies = _copies(library, rotated)
    bandwidth = GpuReadBandwidth(device, max(rotated, dense_bytes))
    for kernel in kernels:
        operand, tried = operands.make(kernel), small.make(kernel)
        tried_matrix = tried.copy()
        check_gpu_weights(tried, tried_matrix)
        for width in num_tokens:
            check_gpu_exactness(tried, tried_matrix, _activations(width, SMALL_SHAPE[1], device))
        copies = library_copies if kernel == LIBRARY else _copies(operand, rotated)
        check_gpu_weights(operand, copies[0])
        for width in num_tokens:
            x = _activations(width, shape[1], device)
            check_gpu_exactness(operand, copies[0], x)
            product = _launches(copies, x, device)
            theirs = product if kernel == LIBRARY else _launches(library_copies, x, device)
            read = bandwidth.of(operand.num_bytes, _num_launches(len(copies), device))
            yield _summarize(operand, width, _measure(product, theirs, read, num_samples))


def _measure(product: Launches, library: Launches, read: Callable[[], float], num_samples: int) -> list[KernelRound]:
    rounds = []
    for index in range(NUM_WARMUPS + num_samples):
        rate = read()
        seconds = product.seconds()
        found = KernelRound(seconds, rate, seconds if library is product else library.seconds())
        if index >= NUM_WARMUPS:
            rounds.append(found)
    return rounds


def _summarize(operand: GpuOperand, num_tokens: int, rounds: Sequence[KernelRound]) -> GpuKernelResult:
    samples = [(each.seconds, each.bandwidth) for each in rounds]
    return GpuKernelResult(
        **vars(summarize_product(operand, operand.implementation, num_tokens, samples)),
        library_seconds=spread([each.library_seconds for each in rounds]).median,
        times_library=spread([each.library_seconds / each.seconds for each in rounds]).median,
    )


def _copies(operand: GpuOperand, rotated_bytes: int) -> list[Product]:
    return [operand.copy() for _ in range(min(max(-(-rotated_bytes // operand.num_bytes), 2), MAX_COPIES))]


def _num_launches(num_copies: int, device: torch.device) -> int:
    """The copies in turn, as often as it takes to be timed; whole turns."""
    turns = -(-MIN_LAUNCHES // num_copies) if device.type == "cuda" else 1
    return turns * num_copies


def _launches(copies: Sequence[Product], x: torch.Tensor, device: torch.device) -> Launches:
    count = _num_launches(len(copies), device)
    return Launches(device, [partial(copies[index % len(copies)].product, x) for index in range(count)])


def _activations(num_tokens: int, in_features: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn((num_tokens, in_features), generator=generator).to(device, torch.bfloat16)
