"""Which layers to skip: a search of the set whose draft is worth most, by a fixed number of evaluations.

One part at a time is left out and scored; then parts are left out together, best first, as long as there are any,
since a few may not pay where many do; then single parts of the best set are taken in, out or exchanged at random.

Source:
    Draft & Verify, arXiv 2309.08168, searches such sets by Bayesian optimization on the speed measured; SWIFT,
    arXiv 2410.06916, by random search in between, on texts that the target itself has written.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError
from mxconv.speculation.self_drafts.part_bytes import PartBytes
from mxconv.speculation.target_text import TargetText

Part = tuple[str, int]  # "a" (attention) or "m" (MLP), and the layer


@dataclass(frozen=True)
class Trial:
    """A set and what it is worth."""

    skipped: Skipped
    score: float


@dataclass
class LayerSearch:
    """A search under way: every set is scored once.

    Args:
        score: what a set is worth, more for better: tokens per unit of cost.
        num_evaluations: how often it may be called.
        trail: every trial, in order.
    """

    score: Callable[[Skipped], float]
    num_evaluations: int
    trail: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """The best trial; the earliest among equals."""
        return max(self.trail, key=lambda trial: trial.score)

    @property
    def num_left(self) -> int:
        """Evaluations."""
        return self.num_evaluations - len(self.trail)

    def evaluate(self, skipped: Skipped) -> None:
        """Score a set, unless it was or no evaluation is left."""
        if self.num_left and all(trial.skipped != skipped for trial in self.trail):
            self.trail.append(Trial(skipped, self.score(skipped)))


def search_layers(
    score: Callable[[Skipped], float],
    num_layers: int,
    num_evaluations: int,
    seed: int = 0,
    kept: Iterable[int] | None = None,
) -> LayerSearch:
    """Search the set of skipped parts with the highest score.

    Args:
        score: see `LayerSearch`; called with nothing skipped first, never twice with one set.
        num_layers: of the model.
        num_evaluations: at least one; a third goes to single parts, a third to their combination, the rest to chance.
        seed: of everything random; the same gives the same trail where `score` does.
        kept: layers that are never skipped; None is the first and the last.

    Raises:
        ModelError: no evaluations.
    """
    if num_evaluations < 1:
        raise ModelError(f"layer search: {num_evaluations} evaluations; at least 1 is required.")
    generator = random.Random(seed)
    fixed = {0, num_layers - 1} if kept is None else set(kept)
    parts = [(kind, layer) for layer in range(num_layers) if layer not in fixed for kind in "am"]
    search = LayerSearch(score, num_evaluations)
    search.evaluate(Skipped())
    if parts:
        _combine(search, _ranked(search, parts, generator))
        _wander(search, parts, generator)
    return search


def layer_skip_speedup(
    decoder: Decoder,
    texts: Sequence[TargetText],
    num_draft_tokens: int,
    draft_bytes: PartBytes,
    target_bytes: float,
) -> Callable[[Skipped], float]:
    """A score for `search_layers`: how much faster than plainly the texts decode, where time is bytes of weights read.

    Plainly a token takes `target_bytes`; with a draft a round does, however many tokens it verifies, and each token
    that is proposed takes the bytes of the parts kept.

    Args:
        decoder: whose parts are skipped: the target or its 4-bit copy.
        texts: by the target.
        num_draft_tokens: in a round.
        draft_bytes: of `decoder`.
        target_bytes: that a pass of the target reads.
    """

    def speedup(skipped: Skipped) -> float:
        draft = decoder.variant(skipped)
        results = [text.drafted_by(draft, num_draft_tokens) for text in texts]
        num_bytes = sum(
            result.num_rounds * target_bytes + result.num_proposed * draft_bytes.total(skipped) for result in results
        )
        return sum(result.num_tokens for result in results) * target_bytes / num_bytes if num_bytes else 0.0

    return speedup


def _ranked(search: LayerSearch, parts: list[Part], generator: random.Random) -> list[Part]:
    """The parts, the one whose loss costs least first; those that there was no evaluation for behind, at random."""
    shuffled = generator.sample(parts, len(parts))
    num_scored = min(len(parts), search.num_evaluations // 3)
    for part in shuffled[:num_scored]:
        search.evaluate(Skipped.of([part]))
    scores = {trial.skipped: trial.score for trial in search.trail}
    scored = sorted(shuffled[:num_scored], key=lambda part: scores[Skipped.of([part])], reverse=True)
    return scored + shuffled[num_scored:]


def _combine(search: LayerSearch, order: list[Part]) -> None:
    """Skip ever more, in order: each number of parts, or every second, third, ... with few evaluations."""
    num_trials = min(len(order), search.num_evaluations // 3)
    for index in range(1, num_trials + 1):
        search.evaluate(Skipped.of(order[: round(index * len(order) / num_trials)]))


def _wander(search: LayerSearch, parts: list[Part], generator: random.Random) -> None:
    """Neighbours of the best set, at random; of the next best where all of those are known, until nothing is left."""
    while search.num_left:
        known = {trial.skipped for trial in search.trail}
        ranked = sorted(search.trail, key=lambda trial: trial.score, reverse=True)
        neighbours = (near for trial in ranked for near in _neighbours(trial.skipped, parts, generator))
        unknown = next((near for near in neighbours if near not in known), None)
        if unknown is None:
            return
        search.evaluate(unknown)


def _neighbours(skipped: Skipped, parts: list[Part], generator: random.Random) -> Iterator[Skipped]:
    """The sets with a part more, a part less, or a part exchanged, in random order."""
    inside = [part for part in parts if part[1] in (skipped.attention if part[0] == "a" else skipped.mlp)]
    outside = [part for part in parts if part not in inside]
    changes = [*({part} for part in parts), *({taken, given} for taken in outside for given in inside)]
    generator.shuffle(changes)
    for change in changes:
        yield Skipped.of(set(inside) ^ change)
