"""One forward pass of each level: what it costs to evaluate 1, 4 or 8 tokens at once.

The passes of one level take turns, each behind a sample of read bandwidth, so that their ratios are of one state of the
machine. All passes evaluate the same positions of the same context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mxconv.bench.machine import last_level_cache_bytes
from mxconv.bench.rates import ReadBandwidth, seconds_of
from mxconv.bench.samples import spread
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.session import borrowed
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.errors import MxconvError
from mxconv.progress import Progress, silent

if TYPE_CHECKING:
    from mxconv.kernels import _native

CONTEXT = 32  # positions in the cache
NUM_WARMUPS = 2
BANDWIDTH_CACHES = 8  # the array that bandwidth is measured on, in last-level caches


@dataclass(frozen=True)
class ForwardResult:
    """One level and width. `seconds` is the median, `_p10` and `_p90` its spread; rates are in 10^9 bytes a second."""

    level: str
    num_tokens: int
    num_bytes: int  # of weights that the pass reads
    seconds: float
    seconds_p10: float
    seconds_p90: float
    num_samples: int
    gigabytes_per_second: float
    read_bandwidth: float
    fraction_of_bandwidth: float
    relative_seconds: float  # to a pass of the fewest tokens


def bench_forwards(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    num_tokens: Sequence[int] = (1, 4, 8),
    num_samples: int = 20,
    progress: Progress = silent,
) -> list[ForwardResult]:
    """Every level of a package.

    Raises:
        MxconvError: a token of the target has other logits alone than among others.
    """
    bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    results = []
    for number, level in enumerate(loaded.levels):
        progress("forward passes", number, len(loaded.levels))
        if level.decoder is not None:  # a look-up has no forward pass
            num_bytes = loaded.bytes_per_pass(level)
            results += _level(level, level.decoder, num_bytes, bandwidth, sorted(num_tokens), num_samples, number == 0)
    progress("forward passes", len(loaded.levels), len(loaded.levels))
    return results


def _level(
    level: LoadedLevel,
    decoder: Decoder,
    num_bytes: int,
    bandwidth: ReadBandwidth,
    widths: Sequence[int],
    num_samples: int,
    is_target: bool,
) -> list[ForwardResult]:
    config = decoder.config
    context = max(min(CONTEXT, config.max_position_embeddings - widths[-1]), 1)
    ids = [int(token) for token in np.random.default_rng(0).integers(0, config.vocab_size, context + widths[-1])]
    cache = decoder.new_cache(context + widths[-1])
    decoder.forward(ids[:context], cache, last_only=True)
    if is_target:
        _check_rows(level.name, decoder, cache, ids[context:])

    def forward(width: int) -> None:
        with borrowed(cache, context, 0):
            decoder.forward(ids[context : context + width], cache)

    samples: dict[int, list[tuple[float, float]]] = {width: [] for width in widths}
    for index in range(NUM_WARMUPS + num_samples):
        for width in widths:
            rate = bandwidth.sample(num_bytes)
            seconds = seconds_of(lambda: forward(width))  # noqa: B023  # called at once
            if index >= NUM_WARMUPS:
                samples[width].append((seconds, rate))
    return [_summarize(level.name, width, num_bytes, samples[width], samples[widths[0]]) for width in widths]


def _summarize(
    level: str, width: int, num_bytes: int, samples: list[tuple[float, float]], narrow: list[tuple[float, float]]
) -> ForwardResult:
    seconds = spread([seconds for seconds, _ in samples])
    relative = [mine / other for (mine, _), (other, _) in zip(samples, narrow, strict=True)]
    return ForwardResult(
        level=level,
        num_tokens=width,
        num_bytes=num_bytes,
        seconds=seconds.median,
        seconds_p10=seconds.p10,
        seconds_p90=seconds.p90,
        num_samples=len(samples),
        gigabytes_per_second=num_bytes / seconds.median / 1e9,
        read_bandwidth=spread([rate for _, rate in samples]).median / 1e9,
        fraction_of_bandwidth=spread([num_bytes / seconds / rate for seconds, rate in samples]).median,
        relative_seconds=spread(relative).median,
    )


def _check_rows(name: str, decoder: Decoder, cache: KVCache, ids: Sequence[int]) -> None:
    """The first token's logits must be the same bits alone and among all others."""
    length = cache.length
    with borrowed(cache, length, 0):
        together = decoder.forward(ids, cache)[0].copy()
    with borrowed(cache, length, 0):
        alone = decoder.forward(ids[:1], cache)[0]
    if not np.array_equal(alone.view(np.uint32), together.view(np.uint32)):
        raise MxconvError(
            f"level {name}: a token has other logits alone than among {len(ids)}; the same bits are required. "
            "It is not measured; please report this as a defect."
        )
