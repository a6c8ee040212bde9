"""An MLP speculator as a draft: it reads the state that chose the context's last token."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arrays import F32
from mxconv.drafts.acceptance import Acceptance
from mxconv.drafts.kind import NUM_CANDIDATES, DraftSpec, LoadedLevel
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.passes import StageRows
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.reader_kind import ReaderKind, reader_weights
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator, SpeculatorConfig
from mxconv.drafts.readers.reader import ReaderSizes
from mxconv.drafts.readers.reading_draft import Listener, ReadingDraft
from mxconv.drafts.rejection import RejectionAcceptance
from mxconv.drafts.trees import Evaluate, GrowingTree
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

    Where all nodes of all depths are more than a pass has rows, every depth has its share of them, for the likeliest.

    Args:
        first: (vocab_size,) the logits after the context.
        position: of the first proposed token in the sequence.
        evaluate: a pass of the draft over new rows of a tree.
        acceptance: the rule of the run; none that draws at random, since what it drew may not be left out.
        top_k: children of each node, by depth; at least one depth.
        num_candidates: paths to keep, at least one.
    """
    tree = GrowingTree([0.0])
    row_of = {-1: -1}
    parents: list[int] = []
    frontier, logits = [-1], first[None]
    for depth, most in enumerate(top_k):
        added: list[int] = []
        for node, row in zip(frontier, logits, strict=True):
            added += tree.add(node, acceptance.guesses(row, position + depth, 0.0, most))
        if depth == len(top_k) - 1:
            leaves = _likeliest(tree, added, num_candidates)
            break
        frontier = _likeliest(tree, added, (MOST_ROWS - len(parents)) // (len(top_k) - 1 - depth))  # rows for all
        leaves = frontier[:num_candidates]
        if not frontier:
            break
        num_cached = len(parents)
        for node in frontier:
            row_of[node] = len(parents)
            parents.append(row_of[tree.parents[node]])
        logits = evaluate([tree.tokens[node] for node in frontier], Tree(parents[:], num_cached))
    return _with_ancestors(tree, leaves)


def _likeliest(tree: GrowingTree, nodes: Sequence[int], most: int) -> list[int]:
    return sorted(nodes, key=lambda node: -tree.chances[node])[:most]


def _with_ancestors(tree: GrowingTree, leaves: Sequence[int]) -> Proposal:
    """The leaves with all nodes above them, in the order in which they grew, as many as fit into a pass."""
    kept: set[int] = set()
    for leaf in leaves:
        path, node = [], leaf
        while node >= 0 and node not in kept:
            path.append(node)
            node = tree.parents[node]
        if len(kept) + len(path) >= MOST_ROWS:
            break
        kept.update(path)
    nodes = sorted(kept)
    place = {-1: -1} | {node: index for index, node in enumerate(nodes)}
    return Proposal(
        [tree.tokens[node] for node in nodes],
        [],
        [tree.own_chances[node] for node in nodes],
        [place[tree.parents[node]] for node in nodes],
    )


class SpeculatorDraft(ReadingDraft):
    """Proposes at most as many tokens as the speculator has stages, each a pass.

    Args:
        speculator: the model.
        listener: for whom it drafts.
        num_candidates: paths of the candidate tree that the paper describes; None grows what is worth its rows.
    """

    def __init__(self, speculator: MlpSpeculator, listener: Listener, num_candidates: int | None = None) -> None:
        super().__init__(speculator.reads, listener)
        self._speculator = speculator
        self._num_candidates = num_candidates

    def grown(
        self,
        first: F32,
        evaluate: Evaluate,
        position: int,
        depth: int,
        floors: Sequence[float],
        floor: float | None,
    ) -> Proposal:
        acceptance = self.listener.acceptance
        if not self._num_candidates or isinstance(acceptance, RejectionAcceptance):
            return super().grown(first, evaluate, position, depth, floors, floor)
        top_k = self._speculator.config.top_k_tokens_per_head[:depth]
        return grow_candidates(first, position, evaluate, acceptance, top_k, self._num_candidates)

    def most_tokens(self, context: Sequence[int]) -> int:
        """Its stages; none where no state has chosen the last token, or that one has no row."""
        can_read = (
            len(context) > 1 and context[-1] < self._speculator.vocab_size and self.listener.session.holds(context)
        )
        return len(self._speculator.stages) if can_read else 0

    def begin(self, context: Sequence[int]) -> tuple[F32, Evaluate]:
        states = self.listener.session.states
        (read,) = states.read(self._speculator.reads, len(context) - 2, len(context) - 1)
        stages = _Stages(self._speculator, read, context[-1], self.listener)
        return stages.first, stages.evaluate


class _Stages:
    """The stages after one context.

    Args:
        speculator: the model.
        read: (1, hidden_size) the state that chose the context's last token.
        last_token: of the context.
        listener: for whom they draft, in whose passes.
    """

    def __init__(self, speculator: MlpSpeculator, read: F32, last_token: int, listener: Listener) -> None:
        self._speculator = speculator
        self._listener = listener
        self._depth = 0
        self._states, logits = self._stage(speculator.begin(read), [last_token])  # of the context; then, a row each
        self.first: F32 = logits[0]

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        """(num_rows, vocab_size): the logits of a tree's new rows, all of one depth, the next."""
        above = self._states[[parent + 1 for parent in tree.parents[tree.num_cached :]]]
        states, logits = self._stage(above, tokens)
        self._states = np.concatenate([self._states, states])
        return logits

    def _stage(self, states: F32, tokens: Sequence[int]) -> tuple[F32, F32]:
        rows = StageRows(self._speculator, self._depth, states, tokens)
        with self._listener.statistics.forward():
            made, logits = self._listener.session.passes.stage(rows)
        self._depth += 1
        return made, logits[:, : self._listener.vocab_size]


class SpeculatorKind(ReaderKind):
    """`speculator:PATH_OR_ID`, in the layout of the Hub's accelerators."""

    name = "speculator"
    record_type = SpeculatorRecord
    parameters = (NUM_CANDIDATES,)

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"num_candidates": spec.parameters.get("num_candidates")}

    def sizes(self, path: Path) -> ReaderSizes:
        return SpeculatorConfig.from_file(path)

    def most_draft_tokens(self, sizes: ReaderSizes) -> int:
        assert isinstance(sizes, SpeculatorConfig)
        return sizes.n_predict

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

    def draft(self, loaded: LoadedLevel, listener: Listener) -> SpeculatorDraft:
        assert isinstance(loaded.reader, MlpSpeculator)
        return SpeculatorDraft(loaded.reader, listener, loaded.record.num_candidates)


SPECULATOR = SpeculatorKind()
