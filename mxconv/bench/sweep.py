"""Draft length against confidence threshold: how fast, how much is accepted, and what the early-exit model predicts.

Every cell is measured, by decoding. Beside it stands cost/early_exit.py's prediction from four numbers of the same run,
none of them a cell's own:

    a        acceptance: of the greatest length at threshold 0, the share of the draft's tokens that were accepted,
             among those whose predecessors in the round were
    c        a draft token
    v + w n  verification of n draft tokens: a line through the rounds of all cells, by least squares, w at least 0

    predicted speed-up = tokens a round / (D c + v + w D)       D: tokens drafted a round; it and tokens a round are
                                                                expected_round(a, length, threshold)

c, v and w are in passes of the target over one token, of the plain decoding before the cell's row; no pass counts for
more than three medians of its kind. Since verification is a line, the mean D stands for all lengths of rounds.

Assumed: the draft's top probability is calibrated and has the density k p^(k-1), k = a / (1 - a); whether tokens are
accepted does not depend on their neighbours. Left out: the prompt, the time between passes, and that a text's last
round is cut short. So what is compared with the prediction is the speed-up behind the prompts.

Source: the map is that of SPEQ (arXiv 2510.18525), Fig. 9, which goes from 4 to 20 tokens and from 0 to 0.8.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, linear_regression, median

from mxconv.bench.decode_result import acceptance_rate, decode_rate, geomean, tokens_per_round
from mxconv.bench.decoding import WARM_TOKENS
from mxconv.bench.prediction import MOST_MEDIANS, timings_of
from mxconv.bench.prompts import prompt_ids
from mxconv.cost.early_exit import expected_round
from mxconv.engine.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.progress import Progress, silent
from mxconv.speculation.generation import Generation
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.text.messages import Prompt

LENGTHS = (2, 4, 8, 16, 20)
THRESHOLDS = (0.0, 0.2, 0.4, 0.6, 0.8)

Table = list[list[float | None]]


@dataclass(frozen=True)
class RoundCosts:
    """What a round takes, in passes of the target over one token."""

    draft_token: float  # c
    verification: float  # v
    verified_token: float  # w


@dataclass(frozen=True)
class Sweep:
    """The target with one draft. Tables are [length][threshold]."""

    level: str
    num_draft_tokens: list[int]
    confidence: list[float]
    speedup: list[list[float]]  # over plain decoding, prompt and all, geometric mean over prompts
    decode_speedup: Table  # over plain decoding, behind the prompts; None where texts have one token
    predicted_speedup: Table  # None where one of the next two is
    acceptance: float | None  # a; None where no length was decoded at threshold 0, or nothing was proposed
    costs: RoundCosts | None  # None where nothing was proposed
    acceptance_rate: Table  # accepted over proposed
    tokens_per_round: list[list[float]]
    target: str  # the level that was decoded

    @property
    def prediction_error(self) -> Table:
        """Predicted over measured speed-up, less 1."""
        rows = zip(self.predicted_speedup, self.decode_speedup, strict=True)
        return [[p / m - 1 if p and m else None for p, m in zip(*row, strict=True)] for row in rows]

    @property
    def mean_error(self) -> float | None:
        """Of the errors' magnitudes over all cells."""
        found = [abs(error) for row in self.prediction_error for error in row if error is not None]
        return fmean(found) if found else None

    @property
    def worst_error(self) -> float | None:
        """The error of the greatest magnitude."""
        return max(
            (error for row in self.prediction_error for error in row if error is not None), key=abs, default=None
        )


def highest(table: Table) -> tuple[int, int] | None:
    """Row and column of the highest value, the first of equals."""
    cells = [(value, (y, x)) for y, row in enumerate(table) for x, value in enumerate(row) if value is not None]
    return max(cells, key=lambda cell: cell[0])[1] if cells else None


def sweep_draft(
    loaded: LoadedPackage,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    progress: Progress = silent,
    lengths: Sequence[int] = LENGTHS,
    thresholds: Sequence[float] = THRESHOLDS,
) -> Sweep:
    """Decode with the target's next level at every length and threshold, plainly before each length's row.

    Raises:
        ModelError: the run has no draft, or a text differs from that of plain decoding.
    """
    if len(loaded.levels) < 2:
        raise ModelError(f"{loaded.package.root}: no draft among its levels; one is required for a sweep. Name one.")
    target, draft = loaded.levels[:2]
    plain = Hierarchy([target])
    cells = {(n, c): Hierarchy([target, draft], [n], [c]) for n in lengths for c in thresholds}
    plainly: dict[int, list[Generation]] = {length: [] for length in lengths}
    found: dict[tuple[int, float], list[Generation]] = {cell: [] for cell in cells}
    ids, stop = prompt_ids(loaded.tokenizer, loaded.folder, prompts), loaded.tokenizer.eos_token_ids
    for hierarchy in (plain, next(iter(cells.values()))):
        hierarchy.generate(ids[0], min(max_new_tokens, WARM_TOKENS), stop)
    done, total = 0, len(ids) * len(cells)
    for prompt in ids:
        for length in lengths:
            expected = plain.generate(prompt, max_new_tokens, stop)
            plainly[length].append(expected)
            for threshold in thresholds:
                progress("sweep", done, total)
                generation = cells[length, threshold].generate(prompt, max_new_tokens, stop)
                if generation.token_ids != expected.token_ids:
                    raise ModelError(
                        f"{loaded.package.root}: tokens of {draft.name}, {length} a round above {threshold}, differ "
                        "from those of greedy decoding; none may. Please report this as a defect."
                    )
                found[length, threshold].append(generation)
                done += 1
    progress("sweep", total, total)
    runs = [run for n, c in cells for run in zip(plainly[n], found[n, c], strict=True)]
    costs, acceptance = _costs(runs), _acceptance(found.get((max(lengths), 0.0), []))
    return Sweep(
        level=draft.name,
        num_draft_tokens=list(lengths),
        confidence=list(thresholds),
        speedup=[[_speedup(plainly[n], found[n, c]) for c in thresholds] for n in lengths],
        decode_speedup=[[_decode_speedup(plainly[n], found[n, c]) for c in thresholds] for n in lengths],
        predicted_speedup=[[_predicted(acceptance, costs, n, c) for c in thresholds] for n in lengths],
        acceptance=acceptance,
        costs=costs,
        acceptance_rate=[[acceptance_rate(found[n, c], 1) for c in thresholds] for n in lengths],
        tokens_per_round=[[tokens_per_round(found[n, c]) for c in thresholds] for n in lengths],
        target=target.name,
    )


def _speedup(plain: Sequence[Generation], mine: Sequence[Generation]) -> float:
    return geomean([before.seconds / run.seconds for before, run in zip(plain, mine, strict=True)])


def _decode_speedup(plain: Sequence[Generation], mine: Sequence[Generation]) -> float | None:
    before, now = decode_rate(plain), decode_rate(mine)
    return now / before if now and before else None


def _acceptance(generations: Sequence[Generation]) -> float | None:
    """a: with long rounds nearly every token of the texts is judged, and once."""
    statistics = [generation.trace.statistics[1] for generation in generations]
    num_judged = sum(draft.num_judged for draft in statistics)
    return sum(draft.num_accepted for draft in statistics) / num_judged if num_judged else None


def _costs(runs: Sequence[tuple[Generation, Generation]]) -> RoundCosts | None:
    """Of runs, each behind the plain one before its row."""
    draft_tokens: list[float] = []
    verifications: dict[int, list[float]] = {}  # by the number of draft tokens
    for plain, run in runs:
        unit = timings_of([plain.trace])[0].pass_seconds  # 0 where the text has one token, and no round behind it
        for target, draft in zip(run.trace.entries[2::2], run.trace.entries[3::2], strict=True):
            number = draft.num_proposed
            verifications.setdefault(number, []).append(target.seconds / unit)
            draft_tokens += [draft.seconds / unit / number for _ in range(number)]
    if not draft_tokens:
        return None
    points = [(number, seconds) for number, found in verifications.items() for seconds in _uninterrupted(found)]
    slope = linear_regression(*zip(*points, strict=True)).slope if len(verifications) > 1 else 0.0
    slope = max(slope, 0.0)
    verification = fmean(seconds - slope * number for number, seconds in points)
    return RoundCosts(fmean(_uninterrupted(draft_tokens)), verification, slope)


def _uninterrupted(passes: Sequence[float]) -> list[float]:
    """With interruptions cut short."""
    longest = MOST_MEDIANS * median(passes)
    return [min(one, longest) for one in passes]


def _predicted(acceptance: float | None, costs: RoundCosts | None, length: int, threshold: float) -> float | None:
    if acceptance is None or costs is None:
        return None
    expected = expected_round(acceptance, length, threshold)
    verification = costs.verification + costs.verified_token * expected.num_drafted
    return expected.speedup(costs.draft_token, verification)
