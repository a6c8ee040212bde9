"""Trees that an EAGLE-3 head grows in one native call are those of one pass after another."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the heads' reference is written in it")

from head_files import eagle3_config, open_eagle3, write_eagle3

from mxconv.drafts.feature_draft import FeatureDraft
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import States
from mxconv.engine.tree import TreeLimits
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.speculation.acceptance import GreedyAcceptance
from mxconv.speculation.loaded_level import DraftInputs
from mxconv.speculation.proposal import Proposal, Sharpness
from mxconv.speculation.selection import Selection
from mxconv.speculation.session import Session
from mxconv.speculation.statistics import LevelStatistics
from mxconv.text.distribution import Penalties, Sampling

pytestmark = pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
VOCAB_SIZE, HIDDEN_SIZE = 60, 32
KNOWN = [*range(3, 40), 44, 47, 51]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "plain": ({}, {}, "BF16"),
    "adds to the normed feature": ({"norm_before_residual": True}, {}, "F16"),
    "feeds back the normed feature": ({"norm_output": True, "fc_norm": True}, {}, "BF16"),
    "two layers": ({"norm_before_fc": True}, {"num_hidden_layers": 2, "attention_bias": True}, "BF16"),
    "norms of heads": ({}, {"model_type": "qwen3", "head_dim": 16}, "F16"),
}


def draft_of(folder: Path, context: list[int], at_once: bool) -> tuple[FeatureDraft, Session]:
    head, make = open_eagle3(folder, native_names()[-1]), Matrices(choose_engine(native_names()[-1], num_threads=2))
    head.grower = make.pair_grower(head.paired) if at_once else None
    session = Session(head.new_cache())
    inputs = DraftInputs(session, GreedyAcceptance(), LevelStatistics("head"), 50, 0.0, Sharpness())
    draft = FeatureDraft(head, inputs)
    read(session, context, 0)
    return draft, session


def read(session: Session, context: list[int], start: int) -> None:
    """The states of all tokens but the last, as a target would leave them."""
    states = States(session.states.reads.layers)
    rows = np.random.default_rng(5).standard_normal((states.room(8, 0, 0).values.shape[0], 64, HIDDEN_SIZE))
    states.values = rows[:, start : len(context) - 1].astype(np.float32)
    session.states.write(start, states)
    session.tokens = context[:-1]


@pytest.mark.parametrize("case", CASES)
def test_chains_and_trees_are_the_same_either_way(tmp_path: Path, case: str) -> None:
    changes, layer, dtype = CASES[case]
    config = eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, {"draft_vocab_size": len(KNOWN)} | changes, layer)
    write_eagle3(tmp_path, config, dtype, KNOWN, seed=3)
    context = np.random.default_rng(1).integers(0, VOCAB_SIZE, 40).tolist()
    made: list[list[Proposal]] = []
    for at_once in (True, False):
        draft, session = draft_of(tmp_path, context[:9], at_once)
        assert (draft._head.grower is not None) == at_once
        proposals = []
        for end in (9, 10, 14, 24):  # what was accepted since is read first
            if end > 9:
                read(session, context[:end], len(session.tokens))
            for floor in (None, 0.0, 0.05):
                proposals.append(draft.propose(context[:end], TreeLimits.chain(5, floor)))
                proposals.append(
                    draft.propose(context[:end], TreeLimits(4, [0.0, 0.0, *[0.002] * 14], least_sum=floor))
                )
        made.append(proposals)
        assert draft.statistics.num_forwards > 40
        assert draft._cache.length >= 23
    for found, expected in zip(*made, strict=True):
        assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
        np.testing.assert_allclose(found.probabilities, expected.probabilities, rtol=1e-4)
        assert set(found.tokens) <= {token for token in KNOWN if token < 50}
    assert max(len(proposal.tokens) for proposal in made[0]) == 16


@pytest.mark.parametrize(
    "selection",
    [
        Selection(Sampling(0.8, top_p=0.9), seed=2**63),
        Selection(penalties=Penalties(1.3, 0.3, 0.2, ((44, 2.0), (45, 9.0), (3, -1.0)))),
        Selection(Sampling(1.0), seed=4, penalties=Penalties(0.7)),
        Selection(Sampling(1.0), "rejection"),
    ],
)
def test_draws_and_penalties_are_the_same_either_way_and_rejection_goes_pass_by_pass(
    tmp_path: Path, selection: Selection
) -> None:
    config = eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, {"draft_vocab_size": len(KNOWN)})
    write_eagle3(tmp_path, config, known=KNOWN, seed=3)
    limits, context, made = TreeLimits(4, [0.0] * 9, -1.0, 0.0, 1.0), [1, 2, 3, 41, 44, 44, 45, 47, 50], []
    for at_once in (True, False):
        draft, _ = draft_of(tmp_path, context, at_once)
        draft.inputs = replace(draft.inputs, acceptance=selection.acceptance(4))
        draft.num_wanted = 4
        grows_at_once = at_once and selection.accept == "coupled"
        by_rule = draft.inputs.acceptance.at_once(limits, context)
        assert (by_rule is not None and draft.grow_at_once(context, by_rule) is not None) == grows_at_once
        made.append(draft.propose(context, TreeLimits(4, [0.0] * 9, least_sum=0.0)))
    if selection.accept == "coupled":
        assert (made[0].tokens, made[0].parents) == (made[1].tokens, made[1].parents)
        np.testing.assert_allclose(made[0].probabilities, made[1].probabilities, rtol=1e-3)


@pytest.mark.parametrize("known", [[*range(3, 40), 51, 47], None])
def test_a_head_whose_tokens_are_not_in_order_grows_pass_by_pass(tmp_path: Path, known: list[int] | None) -> None:
    size = VOCAB_SIZE if known is None else len(known)
    write_eagle3(tmp_path, eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, {"draft_vocab_size": size}), known=known)
    make = Matrices(choose_engine(native_names()[-1]))
    assert (make.pair_grower(open_eagle3(tmp_path, native_names()[-1]).paired) is None) == (known is not None)
    assert Matrices().pair_grower(open_eagle3(tmp_path).paired) is None
