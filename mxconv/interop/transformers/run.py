"""What a run of `generate` with drafts did, and whether torch would have written the same without them."""

from dataclasses import dataclass

from mxconv.drafts.statistics import LevelStatistics


@dataclass(frozen=True)
class Choice:
    """A greedy choice: the best token and the next best, by the scores after all logits processors."""

    index: int  # among the new tokens
    token: int
    runner_up: int
    margin: float  # score of the best minus score of the next best


@dataclass(frozen=True)
class Difference:
    """The first token that depends on how many tokens torch evaluates side by side."""

    with_drafts: Choice
    without_drafts: Choice

    def __str__(self) -> str:
        found, plain = self.with_drafts, self.without_drafts
        return (
            f"new token {found.index} is {found.token} with drafts (margin {found.margin:.3g} over {found.runner_up}) "
            f"and {plain.token} without (margin {plain.margin:.3g} over {plain.runner_up}): this torch model rounds "
            "differently when it evaluates several tokens at once"
        )


@dataclass(frozen=True)
class Run:
    """One call of `generate`.

    Args:
        choices: every new token in order; empty where tokens were drawn at random.
        num_tokens: new ones.
        num_rounds: forward passes of the target.
        levels: what each draft did.
        difference: with `check`, the first token that plain decoding chooses otherwise.
        num_replays: passes, of target and draft, that were replays of CUDA graphs.
    """

    choices: list[Choice]
    num_tokens: int
    num_rounds: int
    levels: list[LevelStatistics]
    difference: Difference | None = None
    num_replays: int = 0

    @property
    def closest(self) -> Choice | None:
        """The choice that rounding could change most easily."""
        return min(self.choices, key=lambda choice: choice.margin, default=None)


def first_difference(with_drafts: list[Choice], without_drafts: list[Choice]) -> Difference | None:
    """The first index at which two runs chose different tokens."""
    for found, plain in zip(with_drafts, without_drafts, strict=False):
        if found.token != plain.token:
            return Difference(found, plain)
    return None
