"""What the products of one matrix by one kernel come to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mxconv.bench.samples import spread


class Multiplied(Protocol):
    """A matrix that a kernel multiplied."""

    @property
    def kernel(self) -> str:
        """Its name."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        ...

    @property
    def num_bytes(self) -> int:
        """That one product reads of it."""
        ...


@dataclass(frozen=True)
class ProductResult:
    """A row of the table. Rates are in 10^9 a second; `seconds` is the median, `_p10` and `_p90` its spread."""

    kernel: str
    implementation: str
    out_features: int
    in_features: int
    num_tokens: int
    num_bytes: int  # that one product reads of the matrix
    seconds: float
    seconds_p10: float
    seconds_p90: float
    num_samples: int
    gigabytes_per_second: float
    read_bandwidth: float  # beside it, GB/s
    fraction_of_bandwidth: float
    giga_multiply_adds_per_second: float


@dataclass(frozen=True)
class KernelResult(ProductResult):
    """A row of the CPU's table, against both bounds of the roofline."""

    compute_peak: float  # beside it, giga multiply-adds a second
    fraction_of_roofline: float  # max(bytes / bandwidth, work / peak) over time


@dataclass(frozen=True)
class Sample:
    """What was measured within a few milliseconds."""

    seconds: float
    bandwidth: float  # bytes a second
    peak: float  # multiply-adds a second


def summarize(operand: Multiplied, implementation: str, num_tokens: int, samples: Sequence[Sample]) -> KernelResult:
    """Medians of the samples, and of their ratios."""
    num_bytes = operand.num_bytes
    work = num_tokens * operand.shape[0] * operand.shape[1]
    product = summarize_product(
        operand, implementation, num_tokens, [(sample.seconds, sample.bandwidth) for sample in samples]
    )
    bound = [max(num_bytes / sample.bandwidth, work / sample.peak) / sample.seconds for sample in samples]
    return KernelResult(
        **vars(product),
        compute_peak=spread([sample.peak for sample in samples]).median / 1e9,
        fraction_of_roofline=spread(bound).median,
    )


def summarize_product(
    operand: Multiplied, implementation: str, num_tokens: int, samples: Sequence[tuple[float, float]]
) -> ProductResult:
    """The same of products alone.

    Args:
        operand: what was multiplied.
        implementation: by whom.
        num_tokens: with how many tokens.
        samples: seconds, and bytes a second that were read beside them.
    """
    num_bytes = operand.num_bytes
    seconds = spread([each for each, _ in samples])
    return ProductResult(
        kernel=operand.kernel,
        implementation=implementation,
        out_features=operand.shape[0],
        in_features=operand.shape[1],
        num_tokens=num_tokens,
        num_bytes=num_bytes,
        seconds=seconds.median,
        seconds_p10=seconds.p10,
        seconds_p90=seconds.p90,
        num_samples=len(samples),
        gigabytes_per_second=num_bytes / seconds.median / 1e9,
        read_bandwidth=spread([bandwidth for _, bandwidth in samples]).median / 1e9,
        fraction_of_bandwidth=spread([num_bytes / taken / bandwidth for taken, bandwidth in samples]).median,
        giga_multiply_adds_per_second=num_tokens * operand.shape[0] * operand.shape[1] / seconds.median / 1e9,
    )
