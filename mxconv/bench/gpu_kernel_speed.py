"""Products of one weight matrix with a few tokens on a GPU, against its read bandwidth and torch's BF16 product.

Samples come in rounds: as many bytes are read as the matrix has, then the kernel multiplies, then `torch.matmul` does,
with the same tokens and BF16 weights, ten times each. Fractions are medians of the rounds' ratios, so that a GPU whose
clocks change does not compare one state with another. All three go through copies that together exceed the L2 cache,
and a figure is the mean of a launch in a CUDA graph, so that Python's launches do not count
(`triton.testing.do_bench_cudagraph`). Everything that a product launches counts, the sum of splits too. On a CPU the
host's clock times one call each: a test, since such times mean nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
import triton
from triton.testing import do_bench_cudagraph

from mxconv.arrays import F32, U16
from mxconv.bench.machine import checkout_commit
from mxconv.bench.operands import (
    SMALL_SHAPE,
    Operand,
    ProductResult,
    check_alone,
    check_product,
    encoded,
    product_members,
    unfit,
)
from mxconv.bench.rates import seconds_of, spread
from mxconv.gpu.device import require_room
from mxconv.gpu.launch import MAX_TOKENS
from mxconv.gpu.weight import BsfpWeight, FourBitWeight, uploaded_weight
from mxconv.package.stored import StoredMxint8
from mxconv.system.processor import cpu_name

LIBRARY = "bf16"  # torch's product, the baseline
KERNELS = (LIBRARY, "bsfp-full", "bsfp-draft", "mxfp4-bf16")
ROUNDING = 2.0**-8  # of torch's BF16 products: of results, and of partial sums where it splits columns
NUM_WARMUPS = 3
CACHE_MULTIPLE = 4  # the copies of a matrix together are at least this many L2 caches
MAX_COPIES = 128
MIN_LAUNCHES = 32  # of a sample on a GPU: some 0.3 ms, where events tell half a microsecond apart
REPLAY_MILLISECONDS = 1  # of the graph whose replays are timed; it holds a sample's launches at least once
NO_GPU = "no GPU: torch on the CPU"
CPU_CACHE_BYTES = 1 << 10  # stands in for an L2 cache, so that there are two copies


@dataclass(frozen=True)
class GpuMachine:
    """A GPU, and the software that launched on it."""

    gpu: str
    compute_capability: str | None  # None of a CPU, as the next three
    memory_bytes: int | None
    l2_cache_bytes: int | None
    cuda: str | None  # that torch was built with
    torch: str
    triton: str
    cpu: str  # of the host
    commit: str | None  # of the checkout that mxconv runs from, followed by "+" where files differ; else None

    @property
    def described(self) -> str:
        """A short name, for pictures."""
        return self.gpu


def gpu_machine(device: torch.device) -> GpuMachine:
    """Describe a device."""
    versions = {"torch": torch.__version__, "triton": triton.__version__, "cpu": cpu_name()}
    if device.type != "cuda":
        return GpuMachine(NO_GPU, None, None, None, None, **versions, commit=checkout_commit())
    found = torch.cuda.get_device_properties(device)
    return GpuMachine(
        gpu=torch.cuda.get_device_name(device),
        compute_capability=f"{found.major}.{found.minor}",
        memory_bytes=found.total_memory,
        l2_cache_bytes=found.L2_cache_size,
        cuda=torch.version.cuda,
        **versions,
        commit=checkout_commit(),
    )


class Product(Protocol):
    """A matrix W, (rows, columns), on a device."""

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T."""
        ...

    def rebuild(self) -> torch.Tensor:
        """W."""
        ...


GpuOperand = Operand[Product]
Sampler = Callable[[], list[float]]


@dataclass(frozen=True, kw_only=True)
class GpuKernelResult(ProductResult):
    """A row of the GPU's table, against the library's BF16 product of the same rounds."""

    library_seconds: float  # median
    times_library: float  # median of the rounds' ratios: how many times as fast


def bench_gpu_kernels(
    kernels: Sequence[str], num_tokens: Sequence[int], shape: tuple[int, int], device: torch.device, num_samples: int
) -> Iterator[GpuKernelResult]:
    """Measure each kernel x width, exactness first.

    Args:
        kernels: of `KERNELS`.
        num_tokens: of a product.
        shape: (out_features, in_features).
        device: a GPU, or a CPU.
        num_samples: rounds of each figure.

    Raises:
        MxconvError: too little memory, or a kernel computes something else than its bytes mean.
    """
    in_cache = CPU_CACHE_BYTES
    if device.type == "cuda":
        in_cache = int(torch.cuda.get_device_properties(device).L2_cache_size)
    rotated = CACHE_MULTIPLE * in_cache
    dense_bytes = 2 * shape[0] * shape[1]
    room = 4 * (max(rotated, dense_bytes) + dense_bytes)  # copies of two matrices, the array that is read, and checks
    require_room(device, room, "bench kernels", "Take fewer --out-features or --in-features.")
    library_copies = _copies(make_gpu_operand(LIBRARY, shape, device), rotated)
    numbers = torch.ones(-(-max(rotated, dense_bytes) // 4), dtype=torch.float32, device=device)
    for kernel in kernels:
        operand, tried = make_gpu_operand(kernel, shape, device), make_gpu_operand(kernel, SMALL_SHAPE, device)
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
            read = _reads(numbers, operand.num_bytes, _num_launches(len(copies), device))
            yield _summarize(operand, width, _measure(product, theirs, read, num_samples))


def _measure(product: Sampler, library: Sampler, read: Sampler, num_samples: int) -> list[tuple[float, float, float]]:
    """Seconds, bytes a second and the library's seconds, round by round."""
    rounds: list[tuple[float, float, float]] = []
    while len(rounds) < NUM_WARMUPS + num_samples:
        rates, seconds = read(), product()
        rounds += zip(seconds, rates, seconds if library is product else library(), strict=True)
    return rounds[NUM_WARMUPS : NUM_WARMUPS + num_samples]


def _summarize(operand: GpuOperand, num_tokens: int, rounds: Sequence[tuple[float, float, float]]) -> GpuKernelResult:
    samples = [(seconds, rate) for seconds, rate, _ in rounds]
    return GpuKernelResult(
        **product_members(operand, _implementation(operand), num_tokens, samples),
        library_seconds=spread([theirs for *_, theirs in rounds]).median,
        times_library=spread([theirs / seconds for seconds, _, theirs in rounds]).median,
    )


def _implementation(operand: GpuOperand) -> str:
    return "torch" if operand.kernel == LIBRARY else "gluon"


def _copies(operand: GpuOperand, rotated_bytes: int) -> list[Product]:
    return [operand.copy() for _ in range(min(max(-(-rotated_bytes // operand.num_bytes), 2), MAX_COPIES))]


def _num_launches(num_copies: int, device: torch.device) -> int:
    """The copies in turn, as often as it takes to be timed; whole turns."""
    turns = -(-MIN_LAUNCHES // num_copies) if device.type == "cuda" else 1
    return turns * num_copies


def _launches(copies: Sequence[Product], x: torch.Tensor, device: torch.device) -> Sampler:
    """Samples seconds of a product."""
    count = _num_launches(len(copies), device)
    products = [partial(copies[index % len(copies)].product, x) for index in range(count)]
    return partial(seconds_of_launches, device, products)


def _reads(numbers: torch.Tensor, num_bytes: int, num_launches: int) -> Sampler:
    """Samples bytes read a second, by sums of so many bytes, each of the next piece of an array of float32."""
    count = min(max(num_bytes // 4, 1), len(numbers))
    pieces = list(torch.split(numbers, count))[: max(len(numbers) // count, 1)]  # all of them whole
    out = torch.zeros((), device=numbers.device)
    sums = [partial(torch.sum, pieces[index % len(pieces)], dim=0, out=out) for index in range(num_launches)]
    return lambda: [4 * count / seconds for seconds in seconds_of_launches(numbers.device, sums)]


def seconds_of_launches(device: torch.device, calls: Sequence[Callable[[], object]]) -> list[float]:
    """Mean seconds of a call, of calls that never wait for the device and read the same memory each time.

    A replay of their graph is one of ten samples, since it takes long to record; on a CPU there is one.
    """

    def call_all() -> None:
        for call in calls:
            call()

    if device.type != "cuda":
        return [seconds_of(call_all) / len(calls)]
    with torch.cuda.device(device):
        replays: list[float] = do_bench_cudagraph(call_all, rep=REPLAY_MILLISECONDS, return_mode="all")
    return [max(milliseconds, 1e-6) / 1e3 / len(calls) for milliseconds in replays]


def _activations(num_tokens: int, in_features: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn((num_tokens, in_features), generator=generator).to(device, torch.bfloat16)


class LibraryMatrix:
    """A BF16 matrix that torch multiplies."""

    def __init__(self, patterns: U16, device: torch.device) -> None:
        self._weights = torch.from_numpy(patterns.view(np.int16)).to(device, copy=True).view(torch.bfloat16)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """x W^T in BF16."""
        return torch.matmul(x, self._weights.T)

    def rebuild(self) -> torch.Tensor:
        """(rows, columns) BF16."""
        return self._weights


def make_gpu_operand(kernel: str, shape: tuple[int, int], device: torch.device) -> GpuOperand:
    """Gaussian weights for one of `KERNELS`. Activations are rounded to BF16."""
    stored, slab = encoded(kernel, shape)
    if isinstance(stored, np.ndarray):
        patterns: U16 = stored
        return Operand(kernel, "bf16", shape, patterns.nbytes, slab, lambda: LibraryMatrix(patterns, device))
    assert not isinstance(stored, StoredMxint8)

    def copy() -> BsfpWeight | FourBitWeight:
        weight = uploaded_weight(stored, device)
        return weight.draft if isinstance(weight, BsfpWeight) and kernel == "bsfp-draft" else weight

    made = copy()
    num_bytes = made.arrays.num_bytes if isinstance(made, BsfpWeight) else made.num_bytes  # without the draft's scales
    return Operand(kernel, "bf16", shape, num_bytes, slab, copy)


def check_gpu_exactness(operand: GpuOperand, matrix: Product, x: torch.Tensor) -> None:
    """Compare a product with float64 arithmetic on the weights that NumPy decodes.

    A token of our kernels must also have the same bits alone as among others, up to 16.

    Args:
        operand: what the matrix was made of.
        matrix: on the device.
        x: (num_tokens, in_features) BF16, there too.

    Raises:
        MxconvError: a result is wrong.
    """
    is_own = operand.kernel != LIBRARY and len(x) <= MAX_TOKENS.value  # beyond, torch multiplies
    name, out = _name(operand), _on_host(matrix.product(x))
    form, rounding = (operand.form, 0.0) if is_own else ("bf16", ROUNDING)
    check_product(name, operand, form, _on_host(x), out, rounding)
    if is_own:
        check_alone(name, out, lambda rows: _on_host(matrix.product(x[rows])))


def check_gpu_weights(operand: GpuOperand, matrix: Product) -> None:
    """Compare all weights with those that NumPy decodes.

    Raises:
        MxconvError: one differs.
    """
    rebuilt, slab = matrix.rebuild(), operand.slab
    for first in range(0, operand.shape[0], len(slab)):
        found = _on_host(rebuilt[first : first + len(slab)])
        expected = slab[: len(found)]
        if not np.array_equal(found, expected):
            row, column = np.argwhere(found != expected)[0]
            raise unfit(
                f"{_name(operand)}: weight {found[row, column]} at row {first + row}, column {column}; "
                f"{expected[row, column]} is required"
            )


def _name(operand: GpuOperand) -> str:
    return f"{operand.kernel} ({_implementation(operand)})"


def _on_host(tensor: torch.Tensor) -> F32:
    found: F32 = tensor.float().cpu().numpy()
    return found
