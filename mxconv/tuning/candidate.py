"""Ways to speculate that tuning chooses between: levels, and for each draft a length and a threshold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from mxconv.package.draft_spec import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS, LOOK_UPS
from mxconv.package.manifest import LevelRecord

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
FIRST_LENGTHS = (2, 4, 8)  # of every draft, to begin with
THRESHOLDS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Candidate:
    """The target with some drafts.

    Args:
        drafts: indices of levels in the package, the target being 0.
        num_draft_tokens: of each.
        confidence: of each.
    """

    drafts: tuple[int, ...]
    num_draft_tokens: tuple[int, ...]
    confidence: tuple[float, ...]


def first_candidates(records: Sequence[LevelRecord]) -> list[Candidate]:
    """Every choice of drafts with the package's own numbers, and with a few lengths; the package's own ones first.

    Args:
        records: of all levels, the target first.
    """
    subsets = list(_subsets(records))
    lengths = [[records[i].num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS for i in drafts] for drafts in subsets]
    found = dict.fromkeys(_candidate(records, drafts, own) for drafts, own in zip(subsets, lengths, strict=True))
    for number in FIRST_LENGTHS:
        found |= dict.fromkeys(_candidate(records, drafts, [number] * len(drafts)) for drafts in subsets)
    return list(found)


def neighbours(candidate: Candidate, records: Sequence[LevelRecord]) -> list[Candidate]:
    """One length or threshold a step up or down, of one draft."""
    found = []
    for place, draft in enumerate(candidate.drafts):
        for length in _beside(LENGTHS, candidate.num_draft_tokens[place]):
            lengths = [*candidate.num_draft_tokens]
            lengths[place] = int(length)
            found.append(replace(candidate, num_draft_tokens=tuple(lengths)))
        if records[draft].kind == "prompt-lookup":  # has no probabilities
            continue
        for threshold in _beside(THRESHOLDS, candidate.confidence[place]):
            thresholds = [*candidate.confidence]
            thresholds[place] = threshold
            found.append(replace(candidate, confidence=tuple(thresholds)))
    return found


def _candidate(records: Sequence[LevelRecord], drafts: tuple[int, ...], lengths: Sequence[int]) -> Candidate:
    own = (records[draft].confidence for draft in drafts)
    thresholds = tuple(DEFAULT_CONFIDENCE if threshold is None else threshold for threshold in own)
    return Candidate(drafts, tuple(lengths), thresholds)


def _subsets(records: Sequence[LevelRecord]) -> Iterator[tuple[int, ...]]:
    """Drafts in the package's order, the most first; of look-ups one at most, the last."""
    for size in range(len(records) - 1, 0, -1):
        for drafts in combinations(range(1, len(records)), size):
            if all(records[draft].kind not in LOOK_UPS for draft in drafts[:-1]):
                yield drafts


def _beside(scale: Sequence[float], value: float) -> list[float]:
    """The next lower and the next higher step of a scale, where there are."""
    lower, higher = [step for step in scale if step < value], [step for step in scale if step > value]
    return [*lower[-1:], *higher[:1]]
