"""An MLP speculator as a draft: it reads the state that chose the context's last token."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.acceptance import Acceptance, RejectionAcceptance
from mxconv.drafts.guesses import SHARPNESS
from mxconv.drafts.kind import Parameter
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator, SpeculatorConfig, StageRows
from mxconv.drafts.readers.reading_draft import Listener, ReadingDraft
from mxconv.drafts.trees import Evaluate, GoesOn, GrowingTree
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.package.level_record import LevelRecord, SpeculatorRecord
from mxconv.package.package import Package


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
    tree = GrowingTree([0.0])
    frontier, logits = [-1], first[None]
    for depth, most in enumerate(top_k):
        added: list[int] = []
        for node, row in zip(frontier, logits, strict=True):
            added += tree.add(node, acceptance.guesses(row, position + depth, 0.0, most, SHARPNESS))
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


class SpeculatorDraft(ReadingDraft):
    """Proposes at most as many tokens as the speculator has stages, each a pass.

    `num_candidates` are paths of the candidate tree that the paper describes; None grows what is worth its rows.
    """

    def __init__(self, speculator: MlpSpeculator, listener: Listener, num_candidates: int | None = None) -> None:
        super().__init__(speculator.reads, listener)
        self._speculator = speculator
        self._num_candidates = num_candidates
        self._stage = 0
        self._states: F32 = np.empty((0, 0), np.float32)  # after the context; then, a row each

    def grown(
        self, first: F32, evaluate: Evaluate, position: int, depth: int, floors: Sequence[float], goes_on: GoesOn
    ) -> Proposal:
        acceptance = self.listener.acceptance
        if not self._num_candidates or isinstance(acceptance, RejectionAcceptance):
            return super().grown(first, evaluate, position, depth, floors, goes_on)
        top_k = self._speculator.config.top_k_tokens_per_head[:depth]
        return grow_candidates(first, position, evaluate, acceptance, top_k, self._num_candidates)

    def most_tokens(self, context: Sequence[int]) -> int:
        """Its stages; 0 where no state has chosen the last token, or that one has no row."""
        has_row = len(context) > 1 and context[-1] < self._speculator.config.vocab_size
        return len(self._speculator.stages) if has_row and self.listener.session.holds(context) else 0

    def begin(self, context: Sequence[int]) -> F32:
        states = self.listener.session.states
        (read,) = states.read(self._speculator.reads, len(context) - 2, len(context) - 1)
        self._stage = 0
        self._states, logits = self._evaluated(self._speculator.begin(read), context[-1:])
        return logits

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        above = self._states[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        states, logits = self._evaluated(above, tokens)
        self._states = np.concatenate([self._states, states])
        return logits

    def _evaluated(self, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        """The states and logits of the next stage."""
        rows = StageRows(self._speculator, self._stage, states, tokens)
        with self.statistics.forward():
            made, logits = self.listener.session.passes.stage(rows)
        self._stage += 1
        return made, logits[:, : self.listener.vocab_size]


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
        assert place is not None and target is not None and target.sizes is not None, "it has a folder and a target"
        config = SpeculatorConfig.from_file(place / "config.json")
        layers: dict[str, Any] = dict.fromkeys(("mixers", "norms", "dense_sizes", "has_experts"), ())
        sizes = replace(target.sizes, hidden_size=config.inner_dim, vocab_size=config.vocab_size, **layers)
        cost = PassCost.of_folder(place, record, replace(sizes, num_experts=0), "speculator")
        return replace(cost, num_passes=1 if config.tie_weights else config.n_predict)

    def draft(self, reader: Any, record: LevelRecord, listener: Listener) -> SpeculatorDraft:
        return SpeculatorDraft(reader, listener, record.num_candidates)


SPECULATOR = SpeculatorKind()
