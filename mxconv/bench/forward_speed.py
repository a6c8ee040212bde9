"""One forward pass of each level: what it costs to evaluate 1, 4 or 8 tokens at once.

The passes of one level take turns, each after a sample of read bandwidth, so that their ratios are of one state of the
machine. All passes evaluate the same positions of the same context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mxconv.arrays import F32
from mxconv.bench.rates import ReadBandwidth, ReadTiming, read_timing, seconds_of, spread
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.errors import MxconvError
from mxconv.progress import Progress, silent
from mxconv.speculation.session import borrowed

if TYPE_CHECKING:
    from mxconv.kernels import _native

CONTEXT = 32  # positions in the cache
NUM_WARMUPS = 2


@dataclass(frozen=True, kw_only=True)
class ForwardResult(ReadTiming):
    """One level and number of tokens."""

    level: str
    num_tokens: int
    relative_seconds: float  # to a pass of the fewest tokens


def bench_forwards(
    loaded: LoadedPackage,
    engine: "_native.Engine",
    num_tokens: Sequence[int] = (1, 4, 8),
    num_samples: int = 20,
    progress: Progress = silent,
) -> list[ForwardResult]:
    """Every level of a package that has forward passes; a look-up has none.

    Raises:
        MxconvError: a token of the target has other logits alone than among others.
    """
    bandwidth, widths = ReadBandwidth(engine), sorted(num_tokens)
    results = []
    for number, level in enumerate(loaded.levels):
        progress("forward passes", number, len(loaded.levels))
        if level.decoder is None:
            continue
        num_bytes = loaded.bytes_per_pass(level)
        name = level.name if number == 0 else None
        samples = _samples(level.decoder, widths, num_bytes, bandwidth, num_samples, name)
        for width, mine in samples.items():
            ratios = [seconds / narrow for (seconds, _), (narrow, _) in zip(mine, samples[widths[0]], strict=True)]
            timing, relative = read_timing(num_bytes, mine), spread(ratios).median
            results.append(ForwardResult(level=level.name, num_tokens=width, relative_seconds=relative, **vars(timing)))
    progress("forward passes", len(loaded.levels), len(loaded.levels))
    return results


def _samples(
    decoder: Decoder,
    widths: Sequence[int],
    num_bytes: int,
    bandwidth: ReadBandwidth,
    num_samples: int,
    target: str | None,
) -> dict[int, list[tuple[float, float]]]:
    """Seconds of passes, and bytes a second before each, by number of tokens; a target's rows are compared first."""
    config = decoder.config
    context = max(min(CONTEXT, config.max_position_embeddings - widths[-1]), 1)
    ids = [int(token) for token in np.random.default_rng(0).integers(0, config.vocab_size, context + widths[-1])]
    cache = decoder.new_cache(context + widths[-1])
    decoder.forward(ids[:context], cache, last_only=True)

    def forward(width: int) -> F32:
        with borrowed(cache, context, 0):
            return decoder.forward(ids[context : context + width], cache)

    if target is not None:
        together, alone = forward(widths[-1])[0].copy(), forward(1)[0]
        if not np.array_equal(alone.view(np.uint32), together.view(np.uint32)):
            raise MxconvError(
                f"level {target}: a token has other logits alone than among {widths[-1]}; the same bits are required. "
                "It is not measured; please report this as a defect."
            )
    samples: dict[int, list[tuple[float, float]]] = {width: [] for width in widths}
    for _ in range(NUM_WARMUPS + num_samples):
        for width, mine in samples.items():
            rate = bandwidth.sample(num_bytes)
            mine.append((seconds_of(partial(forward, width)), rate))
    return {width: mine[NUM_WARMUPS:] for width, mine in samples.items()}
