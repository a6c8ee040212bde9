"""An MLP speculator as a draft: it reads the state that chose the context's last token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, Self

import numpy as np

from mxconv.arch.fields import Fields
from mxconv.arrays import F32
from mxconv.drafts.kind import Parameter, Run
from mxconv.drafts.pass_cost import PassCost
from mxconv.drafts.reader_kind import ReaderConfig, ReaderKind, reader_weights
from mxconv.engine.activations import exact_gelu
from mxconv.engine.sequence_rows import Reads
from mxconv.engine.tree import MOST_ROWS, TreeLimits
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.rowwise import rms_norm
from mxconv.package.level_record import LevelRecord, SpeculatorRecord
from mxconv.package.package import Package
from mxconv.speculation.acceptance import Acceptance
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.model_draft import StagedDraft
from mxconv.speculation.proposal import SHARPNESS, Proposal
from mxconv.speculation.reader import MOST_STAGES, ReaderSizes, StagedReader
from mxconv.speculation.trees import Evaluate, GrowingTree

MOST_CANDIDATES = 64


@dataclass(frozen=True)
class SpeculatorConfig(ReaderConfig):
    """An MLP speculator.

    Args:
        vocab_size: tokens that every stage chooses from.
        emb_dim: hidden size of the target whose last normed state it reads.
        inner_dim: length of its own states.
        n_predict: stages, a token each.
        top_k_tokens_per_head: how many tokens each stage proposes after each of the one before, in its candidate tree.
        n_candidates: paths of that tree that are kept.
        tie_weights: whether all stages have one embedding, one norm and one head, and all but the first one projection.
        scale_input: whether the target's state is normed and divided by the square root of 2 first.
    """

    vocab_size: int
    emb_dim: int
    inner_dim: int
    n_predict: int
    top_k_tokens_per_head: tuple[int, ...]
    n_candidates: int
    tie_weights: bool
    scale_input: bool

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        fields.choice("model_type", ("mlp_speculator",))
        emb_dim, n_predict = fields.size("emb_dim"), fields.size("n_predict")
        if n_predict > MOST_STAGES:
            fields.reject("n_predict", f"at most {MOST_STAGES} stages are supported")
        return cls(
            vocab_size=fields.size("vocab_size"),
            emb_dim=emb_dim,
            # 0 stands for emb_dim
            inner_dim=emb_dim if fields.values.get("inner_dim") == 0 else fields.size("inner_dim", emb_dim),
            n_predict=n_predict,
            top_k_tokens_per_head=_top_k(fields, n_predict),
            n_candidates=min(fields.size("n_candidates", 5), MOST_CANDIDATES),
            tie_weights=fields.flag("tie_weights", False),
            scale_input=fields.flag("scale_input", False),
        )

    @property
    def sizes(self) -> ReaderSizes:
        return ReaderSizes(self.emb_dim, self.vocab_size, most_tokens=self.n_predict)

    def to_dict(self) -> dict[str, object]:
        """What config.json holds."""
        return {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            **{key: list(value) if isinstance(value, tuple) else value for key, value in vars(self).items()},
        }


def _top_k(fields: Fields, n_predict: int) -> tuple[int, ...]:
    """A number a stage; without the key 5, 4, 3 and then 2."""
    counts = fields.values.get("top_k_tokens_per_head")
    if counts is None:
        return tuple(max(5 - stage, 2) for stage in range(n_predict))
    if (
        not isinstance(counts, list)
        or len(counts) != n_predict
        or not all(type(count) is int and 1 <= count <= MOST_CANDIDATES for count in counts)
    ):
        fields.reject(
            "top_k_tokens_per_head",
            f"a list of n_predict, {n_predict}, numbers from 1 to {MOST_CANDIDATES} is required",
        )
    return tuple(counts)


EPS = 1e-6
PREFIX = "speculator."


@dataclass(frozen=True)
class Stage:
    """The weights of one head."""

    embedding: Matrix  # (vocab_size, inner_dim)
    projection: Matrix  # (inner_dim, emb_dim or inner_dim)
    scale: F32  # (inner_dim,)
    shift: F32
    head: Matrix  # (vocab_size, inner_dim)


class MlpSpeculator(StagedReader):
    """A draft that reads the target's last normed state.

    Args:
        weights: tensors by the names that the Hub's accelerators give them; of tied stages the first is enough.

    Raises:
        ModelError: a tensor is missing or misshapen.
    """

    def __init__(self, config: SpeculatorConfig, weights: ModelWeights, name: str) -> None:
        super().__init__(config.sizes, Reads(normed_last=True), name)
        self.config = config
        self.stages = [_stage(config, CheckedWeights(weights, name), index) for index in range(config.n_predict)]
        self.num_stages = config.n_predict
        state_weight = 0.5 ** (0.5 / config.n_predict)
        self._token_weight = np.float32(sqrt((1 - state_weight**2) * (config.inner_dim / 2)) / state_weight)

    def begin(self, states: F32) -> F32:
        if not self.config.scale_input:
            return states
        ones = np.ones(self.config.emb_dim, np.float32)
        return rms_norm(states, ones, EPS) / np.float32(sqrt(2))

    def advance(self, index: int, states: F32, tokens: Sequence[int]) -> F32:
        stage = self.stages[index]
        mixed = stage.projection.multiply(states)
        mixed += self._token_weight * stage.embedding.rows(np.array(tokens, np.intp))
        return exact_gelu(rms_norm(mixed, stage.scale, EPS) + stage.shift)

    def logits(self, index: int, states: F32) -> F32:
        return self.stages[index].head.multiply(states)


def _stage(config: SpeculatorConfig, weights: CheckedWeights, index: int) -> Stage:
    """The weights of a stage; tied ones are the first stage's, but its projection, whose input has another length."""
    own = 0 if config.tie_weights else index
    projection = min(index, 1) if config.tie_weights else index
    inner, read = config.inner_dim, config.inner_dim if index else config.emb_dim
    return Stage(
        embedding=weights.matrix(f"{PREFIX}emb.{own}.weight", config.vocab_size, inner),
        projection=weights.matrix(f"{PREFIX}proj.{projection}.weight", inner, read),
        scale=weights.vector(f"{PREFIX}ln.{own}.weight", inner),
        shift=weights.vector(f"{PREFIX}ln.{own}.bias", inner),
        head=weights.matrix(f"{PREFIX}head.{own}.weight", config.vocab_size, inner),
    )


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

    def reader(self, folder: Path, record: LevelRecord, run: Run) -> MlpSpeculator:
        weights, _ = reader_weights(folder, record, run)
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
