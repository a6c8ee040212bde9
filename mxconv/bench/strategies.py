"""Ways to decode a package that are compared: those of ML-SpecQD (arXiv 2503.13565), Tables I and II, and more.

greedy              the target alone: the first of the run's levels, which need not be the 16-bit one
NAME                the target with one draft: the 4-bit copy, a small model, a look-up
NAME (trees)        the same by trees: as large as pays, or of a given number of nodes
NAME (fp32)         the same 4-bit draft multiplying float32 activations, for ML-SpecQD Table III
hierarchy           all levels, where there is more than one draft
auto                all levels, each choosing round by round what to ask of which
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mxconv.drafts.kind import LoadedLevel
from mxconv.errors import ModelError
from mxconv.speculation.chain import growers
from mxconv.speculation.hierarchy import Hierarchy

GREEDY = "greedy"


@dataclass(frozen=True)
class StrategyRecord:
    """What is told of a strategy. One that is adaptive chooses its drafts round by round."""

    name: str
    levels: list[str]
    is_adaptive: bool


@dataclass(frozen=True)
class Strategy:
    name: str
    hierarchy: Hierarchy

    @property
    def levels(self) -> list[str]:
        return [level.name for level in self.hierarchy.levels]

    @property
    def record(self) -> StrategyRecord:
        return StrategyRecord(self.name, self.levels, self.hierarchy.adaptive)


def strategies_of(
    levels: Sequence[LoadedLevel],
    fp32_draft: LoadedLevel | None = None,
    tree: int | Literal["auto", "chain"] = "auto",
) -> list[Strategy]:
    """Every strategy for these levels, greedy first.

    Args:
        levels: the target first.
        fp32_draft: the 4-bit level of the same name once more, by float32 arithmetic; it stands beside its sibling.
        tree: as `Hierarchy` takes it; each draft alone is there by chains in any case.
    """
    target, *drafts = levels
    tree_lengths: Literal["auto"] | None = "auto" if tree == "auto" else None
    strategies = [Strategy(GREEDY, Hierarchy([target]))]
    for draft in drafts:
        strategies.append(Strategy(draft.name, Hierarchy([target, draft])))
        if tree != "chain" and growers([target, draft], 0):
            strategies.append(Strategy(f"{draft.name} (trees)", Hierarchy([target, draft], tree_lengths, tree=tree)))
        if fp32_draft is not None and draft.name == fp32_draft.name:
            same_tokens = replace(fp32_draft, tokenizer=draft.tokenizer)  # of one package, loaded twice
            strategies.append(Strategy(f"{draft.name} (fp32)", Hierarchy([target, same_tokens])))
    if len(drafts) > 1:
        strategies.append(Strategy("hierarchy", Hierarchy(levels)))
    if drafts:
        strategies.append(Strategy("auto", Hierarchy(levels, num_draft_tokens="auto", tree=tree)))
    return strategies


def four_bit_level(levels: Sequence[LoadedLevel]) -> LoadedLevel:
    """The package's own 4-bit draft.

    Raises:
        ModelError: it is not among the drafts.
    """
    for level in levels[1:]:
        if level.record.kind == "self-draft":
            return level
    raise ModelError(
        f"levels {', '.join(level.name for level in levels)}: no 4-bit draft of the target; one is required to compare "
        "activations. Name it in --levels, below the 16-bit level."
    )
