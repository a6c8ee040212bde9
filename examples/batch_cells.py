"""Seconds of real passes over many sequences, by batch and context, beside what the machine can do meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
from batch_drafts import Draft
from batch_texts import Texts

from mxconv.bench.capability import FORMS
from mxconv.bench.machine import last_level_cache_bytes
from mxconv.bench.rates import PeakArithmetic, ReadBandwidth
from mxconv.cost.hardware import BANDWIDTH, PEAKS, THIS_MACHINE, Hardware
from mxconv.engine.decoder import Decoder
from mxconv.engine.forest import SequenceRows
from mxconv.kernels import _native

LEAST_SAMPLES, MOST_SAMPLES = 2, 7
ENOUGH_SECONDS = 0.4  # of samples of one pass, or proposal: short ones are taken more often
BANDWIDTH_CACHES = 8  # the array that is read, in last-level caches
BANDWIDTH_BYTES = 1 << 27  # a sample
SOURCE = "measured by examples/batch_maps.py beside the passes"
Rows = tuple[int, ...]  # of a sequence, in each pass of a proposal


@dataclass(frozen=True)
class Cell:
    """What was measured of one batch behind one context; seconds are medians.

    Args:
        batch: sequences.
        context: positions in the cache of each.
        hardware: bandwidth and peaks, medians too.
        verify: of the target's pass, by rows of each sequence; 1 is plain decoding.
        drafts: of proposals, by kind and rows: up to the end of each pass.
    """

    batch: int
    context: int
    hardware: Hardware
    verify: Mapping[int, float]
    drafts: Mapping[tuple[str, Rows], Sequence[float]]

    @property
    def plain_seconds(self) -> float:
        return self.verify[1]

    def verify_seconds(self, num_rows: float) -> float:
        """Between widths that were measured, on the line through both."""
        return float(np.interp(num_rows, list(self.verify), list(self.verify.values())))

    def draft_seconds(self, kind: str, rows: Rows) -> float:
        """Of a proposal that was measured, or with which one begins."""
        return next(
            seconds[len(rows) - 1]
            for (name, longer), seconds in self.drafts.items()
            if name == kind and longer[: len(rows)] == rows
        )


class CellBench:
    """Measures cells, one after another.

    Args:
        target: over the texts' caches.
        texts: as many and as long as the largest cell.
        drafts: by kind.
        engine: whose threads measure what the machine can do.
    """

    def __init__(self, target: Decoder, texts: Texts, drafts: Mapping[str, Draft], engine: _native.Engine) -> None:
        self._target, self._texts, self._drafts = target, texts, drafts
        self._bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
        self._peaks = {form: PeakArithmetic(engine, name) for name, form in FORMS.items()}

    def measure(self, batch: int, context: int, widths: Sequence[int], proposals: Sequence[tuple[str, Rows]]) -> Cell:
        """All passes of a cell in turns, each turn behind samples of the machine.

        Args:
            batch: sequences.
            context: positions of each.
            widths: rows of each sequence that the target verifies, ascending from 1.
            proposals: kinds, and rows of the passes.
        """
        works: dict[object, Callable[[], list[float]]] = {
            width: partial(self._verify, batch, context, width) for width in widths
        }
        works |= {(kind, rows): partial(self._propose, batch, context, kind, rows) for kind, rows in proposals}
        self._verify(batch, context, 1)
        for kind in dict(proposals):
            self._propose(batch, context, kind, (1,))
        found: dict[object, list[list[float]]] = {key: [] for key in works}
        read, peaks = [], {form: [] for form in self._peaks}  # type: ignore[var-annotated]
        for _ in range(MOST_SAMPLES):
            read.append(self._bandwidth.sample(BANDWIDTH_BYTES) / 1e9)
            for form, peak in self._peaks.items():
                peaks[form].append(peak.sample() / 1e9)
            for key, work in works.items():
                if len(found[key]) < LEAST_SAMPLES or sum(taken[-1] for taken in found[key]) < ENOUGH_SECONDS:
                    found[key].append(work())
        best = {form: median(samples) for form, samples in peaks.items()}
        hardware = Hardware(THIS_MACHINE, SOURCE, median(read), best, {BANDWIDTH: SOURCE, PEAKS: SOURCE})
        seconds = {key: [float(each) for each in np.median(samples, axis=0)] for key, samples in found.items()}
        return Cell(
            batch,
            context,
            hardware,
            {width: seconds[width][0] for width in widths},
            {proposal: seconds[proposal] for proposal in proposals},
        )

    def _verify(self, batch: int, context: int, width: int) -> list[float]:
        with self._texts.of(batch, context) as caches:
            rows = [SequenceRows([1] * width, cache) for cache in caches]
            begin = perf_counter()
            self._target.forward_forest(rows)
            return [perf_counter() - begin]

    def _propose(self, batch: int, context: int, kind: str, rows: Rows) -> list[float]:
        with self._texts.of(batch, context) as caches:
            begin = perf_counter()
            return [perf_counter() - begin for _ in self._drafts[kind].propose(caches, rows)]
