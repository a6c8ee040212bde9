"""An MLP speculator as a draft: it reads the state that chose the context's last token."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from mxconv.arrays import F32
from mxconv.drafts.kind import Parameter
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator, SpeculatorConfig
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.tree import MOST_ROWS, TreeLimits
from mxconv.package.level_record import LevelRecord, SpeculatorRecord
from mxconv.package.package import Package
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.guesses import SHARPNESS
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import StagedDraft
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.trees import Evaluate, GrowingTree


def grow_candidates(
    first: F32,
    position: int,
    evaluate: Evaluate,
    acceptance: Acceptance,
    top_k: Sequence[int],
    num_candidates: int,
) -> Proposal:
    """Expand every node of each depth, then keep the likeliest paths of full length.

    Where all nodes are more than a pass has rows, every depth has its share of them, for the likeliest.

    Args:
        first: as `grow_by_passes` takes it, as `position` and `evaluate`.
        acceptance: the rule of the run, which does not draw at random, since such draws may not be left out.
        top_k: children of each node, by depth; at least one depth.
        num_candidates: paths to keep, at least one.
    """
    tree = GrowingTree(TreeLimits(len(top_k), [0.0], sharpness=SHARPNESS))
    frontier, logits = [-1], first[None]
    for depth, most in enumerate(top_k):
        added: list[int] = []
        for node, row in zip(frontier, logits, strict=True):
            added += tree.guess(node, row, position + depth, acceptance, most)
        ranked = sorted(added, key=lambda node: -tree.chances[node])
        leaves, num_left = ranked[:num_candidates], len(top_k) - 1 - depth
        if not ranked or not num_left:
            break
        frontier = ranked[: (MOST_ROWS - len(tree.row_parents)) // num_left]
        leaves = frontier[:num_candidates]
        logits = tree.evaluate(frontier, evaluate)
    kept: set[int] = set()
    for leaf in leaves:
        path, node = [], leaf
        while node >= 0 and node not in kept:
            path.append(node)
            node = tree.parents[node]
        if len(kept) + len(path) >= MOST_ROWS:
            break
        kept.update(path)
    return tree.part(sorted(kept))


class SpeculatorDraft(StagedDraft):
    """Proposes by the stages of an MLP speculator.

    `num_candidates` are paths of the candidate tree that the paper describes; None grows what is worth its rows.
    """

    def __init__(self, speculator: MlpSpeculator, inputs: DraftInputs, num_candidates: int | None = None) -> None:
        super().__init__(speculator, inputs)
        self._top_k = speculator.config.top_k_tokens_per_head
        self._num_candidates = num_candidates

    def by_passes(self, context: Sequence[int], limits: TreeLimits) -> tuple[Proposal, list[int]]:
        rule = self.inputs.acceptance
        if limits.is_chain or not self._num_candidates or rule.draws_what_is_left:
            return super().by_passes(context, limits)
        first, evaluate = self.passes(context)
        top_k = self._top_k[: limits.most_depth]
        return grow_candidates(first, len(context), evaluate, rule, top_k, self._num_candidates), []


def stage_cost(
    place: Path, record: LevelRecord, target: PassCost, shape: tuple[int, int], num_passes: int, typical: str | None
) -> PassCost:
    """The cost of a stage, a model without layers, of which so many passes read all weights once.

    `shape` is the hidden size and the vocabulary size; other arguments are those of `PassCost`.
    """
    assert target.sizes is not None, "the first level is a model"
    layers: dict[str, Any] = dict.fromkeys(("mixers", "norms", "dense_sizes", "has_experts"), ())
    sizes = replace(target.sizes, hidden_size=shape[0], vocab_size=shape[1], num_experts=0, **layers)
    return replace(PassCost.of_folder(place, record, sizes, typical), num_passes=num_passes)


class SpeculatorKind(ReaderKind):
    """`speculator:PATH_OR_ID`, in the layout of the Hub's accelerators."""

    name = "speculator"
    config = SpeculatorConfig
    record_type = SpeculatorRecord
    parameters = (Parameter("num_candidates", 1, 64),)

    def reader(
        self, folder: Path, record: LevelRecord, make: Matrices, stack: ExitStack, target: Decoder | None = None
    ) -> MlpSpeculator:
        weights, _ = reader_weights(folder, record, make, stack)
        return MlpSpeculator(SpeculatorConfig.from_file(folder / "config.json"), weights, record.name)

    def cost(self, record: LevelRecord, place: Path | None, package: Package, target: PassCost | None) -> PassCost:
        """Every token is a pass of one stage: a model without layers."""
        assert place is not None and target is not None, "it has a folder and a target"
        config = SpeculatorConfig.from_file(place / "config.json")
        num_passes = 1 if config.tie_weights else config.n_predict
        return stage_cost(place, record, target, (config.inner_dim, config.vocab_size), num_passes, "speculator")

    def draft(self, reader: Any, record: LevelRecord, inputs: DraftInputs) -> SpeculatorDraft:
        return SpeculatorDraft(reader, inputs, record.num_candidates)


SPECULATOR = SpeculatorKind()
