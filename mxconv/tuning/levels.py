"""Which levels to decode with, how many tokens each drafts, and when it stops: found by decoding.

First every choice of levels races at a few lengths; then the fastest races against its neighbours, one length or
threshold apart, as long as one of those is faster; what is left of the time says how fast the last winner really is,
since the fastest of many measurements flatters itself.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from mxconv.engine.loaded_level import LoadedLevel
from mxconv.errors import ModelError
from mxconv.package.manifest import TunedRecord
from mxconv.progress import Progress, silent
from mxconv.speculation.generation import Generation
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.tuning.candidate import Candidate, first_candidates, neighbours
from mxconv.tuning.race import Standing, race

FIRST_SHARE = 0.45  # of the time: all levels
CLIMB_SHARE = 0.4  # of what is left then: each step to a neighbour
LAST_SHARE = 0.15  # of the time: the winner alone


@dataclass(frozen=True)
class Tuning:
    """What was found.

    Args:
        standings: everything that ran in the first race, the fastest first.
        winner: the fastest candidate of all, with its ratios when it ran alone.
        num_tokens: that it decoded then.
    """

    standings: list[Standing[Candidate]]
    winner: Standing[Candidate]
    num_tokens: int

    @property
    def pays(self) -> bool:
        """Whether the winner is faster than plain decoding."""
        return self.winner.speedup > 1


class Decodes:
    """Decodes prompts with candidates, and sees that all give the same text.

    Args:
        levels: the target first.
        prompts: token ids, a list each.
        max_new_tokens: a prompt.
        stop_tokens: ids that end a text.
    """

    def __init__(
        self,
        levels: Sequence[LoadedLevel],
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop_tokens: Collection[int],
    ) -> None:
        self._levels = levels
        self._prompts = prompts
        self._max_new_tokens = max_new_tokens
        self._stop_tokens = stop_tokens
        self._expected: dict[int, list[int]] = {}
        self._hierarchies: dict[Candidate | None, Hierarchy] = {None: Hierarchy(levels[:1])}
        self.num_tokens = 0

    def seconds_of(self, candidate: Candidate | None, prompt: int) -> float:
        """Of a decode; None decodes plainly.

        Raises:
            ModelError: the text differs from that of plain decoding.
        """
        if candidate not in self._hierarchies and candidate is not None:
            levels = [self._levels[0], *(self._levels[draft] for draft in candidate.drafts)]
            self._hierarchies[candidate] = Hierarchy(levels, candidate.num_draft_tokens, candidate.confidence)
            self._generate(self._hierarchies[candidate], prompt, 2)  # warms caches
        generation = self._generate(self._hierarchies[candidate], prompt, self._max_new_tokens)
        if generation.token_ids != self._expected.setdefault(prompt, generation.token_ids):
            raise ModelError(
                f"prompt {prompt}: decoding with {self.describe(candidate)} gives another text than plain decoding; "
                "none may. Please report this as a defect."
            )
        self.num_tokens += len(generation.token_ids)
        return generation.seconds

    def names(self, candidate: Candidate | None) -> list[str]:
        """Of its levels, the target first."""
        return [self._levels[index].name for index in (0, *(candidate.drafts if candidate else ()))]

    def describe(self, candidate: Candidate | None) -> str:
        """Its levels as people read them."""
        return " <- ".join(self.names(candidate))

    def _generate(self, hierarchy: Hierarchy, prompt: int, max_new_tokens: int) -> Generation:
        return hierarchy.generate(self._prompts[prompt], max_new_tokens, self._stop_tokens)


def tune_levels(
    decodes: Decodes,
    levels: Sequence[LoadedLevel],
    num_prompts: int,
    budget_seconds: float,
    progress: Progress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> Tuning:
    """Search until the time is over, or nothing better is near.

    Args:
        decodes: of these levels.
        levels: the target first.
        num_prompts: that it has.
        budget_seconds: to begin runs in; at least one race is begun.
        progress: told about the time.
        clock: seconds.

    Raises:
        ModelError: no drafts to choose from, or a text that differs.
    """
    records = [level.record for level in levels]
    candidates = first_candidates(records)
    if not candidates:
        raise ModelError(
            f"levels {', '.join(record.name for record in records)}: no draft to choose; at least one is required. "
            "Convert with --draft, or name more in --levels."
        )
    begin = clock()

    def seconds_of(candidate: Candidate | None, prompt: int) -> float:
        progress("tune", round(min(clock() - begin, budget_seconds)), round(budget_seconds))
        return decodes.seconds_of(candidate, prompt)

    search_end = begin + (1 - LAST_SHARE) * budget_seconds
    standings = race(candidates, num_prompts, seconds_of, FIRST_SHARE * budget_seconds, clock)
    known = {standing.entrant for standing in standings}
    best = standings[0].entrant
    while clock() < search_end:
        near = [candidate for candidate in neighbours(best, records) if candidate not in known]
        if not near:
            break
        known.update(near)
        faster = race([best, *near], num_prompts, seconds_of, CLIMB_SHARE * (search_end - clock()), clock)[0].entrant
        if faster == best:
            break
        best = faster
    alone, num_tokens = _alone(best, num_prompts, seconds_of, begin + budget_seconds - clock(), clock, decodes)
    progress("tune", round(budget_seconds), round(budget_seconds))
    return Tuning(standings, alone, num_tokens)


def record_of(tuning: Tuning, levels: Sequence[LoadedLevel], cpu: str, threads: int, kernel: str) -> TunedRecord:
    """What the manifest says about it: the target alone where no draft pays."""
    candidate = tuning.winner.entrant if tuning.pays else Candidate((), (), ())
    return TunedRecord(
        levels=[levels[index].name for index in (0, *candidate.drafts)],
        num_draft_tokens=list(candidate.num_draft_tokens),
        confidence=list(candidate.confidence),
        speedup=tuning.winner.speedup if tuning.pays else 1.0,
        num_prompts=len(tuning.winner.ratios),
        num_tokens=tuning.num_tokens,
        cpu=cpu,
        threads=threads,
        kernel=kernel,
    )


def _alone(
    best: Candidate,
    num_prompts: int,
    seconds_of: Callable[[Candidate | None, int], float],
    budget_seconds: float,
    clock: Callable[[], float],
    decodes: Decodes,
) -> tuple[Standing[Candidate], int]:
    """A candidate against plain decoding, and the tokens that it decoded."""
    before = decodes.num_tokens
    (standing,) = race([best], num_prompts, seconds_of, budget_seconds, clock)
    return standing, (decodes.num_tokens - before) // 2  # plain decoding gave as many
