"""Trees that a native decoder grows in one call are those of one pass after another, and so are caches after them."""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import DRAFTS, TARGETS, native_copy, with_format

from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.float16 import BF16, FP16
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.sequence_rows import Reads
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.tree import Tree, TreeLimits
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import MAX_SEED, Selection
from mxconv.speculation.session import Session
from mxconv.speculation.trees import grow_by_passes, of_grown
from mxconv.text.distribution import Penalties, Sampling, distribution

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
pytestmark = pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
GREEDY = GreedyAcceptance()
SAMPLINGS = [
    Sampling(1.0),
    Sampling(0.7),
    Sampling(1.0, top_k=5),
    Sampling(0.8, top_p=0.7),
    Sampling(0.9, 9, 0.9, 0.05),
]
PENALTIES = [Penalties(), Penalties(1.3), Penalties(0.8, 0.4, -0.3), Penalties(1.0, 0.0, 0.5, ((7, 3.0), (95, -5.0)))]
NAMES = [name for name in checkpoints.FAMILIES if "several towers" not in name]
FORMS = [*TARGETS, *DRAFTS]


def decoder_of(family: Any, form: str) -> Decoder:
    weights = with_format(family.weights, FP16 if form == "dense" else BF16)
    return native_copy(family.config, weights, Matrices(choose_engine(num_threads=2)), (TARGETS | DRAFTS)[form])


@pytest.fixture(scope="module")
def draft(family_of: Callable[[str], Any]) -> Decoder:
    return decoder_of(family_of("llama"), "mxfp4")


def by_passes(
    session: Session, decoder: Decoder, context: list[int], limits: TreeLimits, rule: Acceptance
) -> tuple[Proposal, list[int]]:
    def evaluate(tokens: list[int], tree: Tree) -> np.ndarray:
        return session.feed(decoder, tokens, len(tokens), tree)

    first = session.feed(decoder, session.align(context), 1)[0]
    if rule.rules is not None:
        first, evaluate = rule.rules.passes(context, first, evaluate)
    return grow_by_passes(first, len(context), evaluate, rule, limits)


def assert_alike(decoder: Decoder, context: list[int], limits: TreeLimits, rule: Acceptance = GREEDY) -> Proposal:
    """Twice one after the other, so that the second tree begins below a kept path."""
    at_once, one_by_one = Session(decoder.new_cache()), Session(decoder.new_cache())
    for _ in range(2):
        by_rule = rule.at_once(limits, context)
        assert by_rule is not None
        grown = at_once.grow(decoder, at_once.align(context), decoder.config.vocab_size, by_rule)
        assert grown is not None
        proposal, kept = of_grown(grown, limits)
        expected, rows = by_passes(one_by_one, decoder, context, limits, rule)
        assert (proposal.tokens, proposal.parents, kept) == (expected.tokens, expected.parents, rows)
        # the shares of draws that cannot come first are left out, by either way some more
        tolerance = 1e-5 if isinstance(rule, GreedyAcceptance) else 1e-3
        np.testing.assert_allclose(proposal.probabilities, expected.probabilities, rtol=tolerance)
        for session in (at_once, one_by_one):
            session.keep(len(context), kept)
        assert at_once.tokens == one_by_one.tokens and at_once.cache.length == one_by_one.cache.length
        for found, wanted in zip(at_once.cache.arrays, one_by_one.cache.arrays, strict=True):
            np.testing.assert_array_equal(found[:, :, : at_once.cache.length], wanted[:, :, : at_once.cache.length])
        context = [*context, *proposal.tokens[:1], 7]
    return proposal


@pytest.mark.parametrize("name", NAMES)
def test_every_family_grows_what_it_grows_pass_by_pass(family_of: Callable[[str], Any], name: str) -> None:
    """One that is not grown at once says so; the others have embeddings, rotations and temperatures of their own."""
    family = family_of(name)
    decoder = decoder_of(family, FORMS[NAMES.index(name) % len(FORMS)])
    limits = TreeLimits(4, [0.0] * 12, -inf, 0.0, 1.5)
    config, context = family.config, list(family.token_ids[:9])
    if config.state_sizes is not None or config.layer_inputs is not None or config.positions is not None:
        assert decoder.grow(context, decoder.new_cache(), config.vocab_size, limits) is None
    else:
        assert len(assert_alike(decoder, context, limits).tokens) == 12


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_limits(draft: Decoder, data: st.DataObject) -> None:
    floors = sorted(data.draw(st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.2]), min_size=1, max_size=40)))
    least = data.draw(st.sampled_from([(-inf, 0.0), (-inf, 0.05), (-inf, 0.5), (0.02, -inf), (0.3, -inf)]))
    depth, sharpness = data.draw(st.integers(1, 9)), data.draw(st.sampled_from([1.0, 1.5, 4.0]))
    count = data.draw(st.integers(1, 70))
    context = np.random.default_rng(count).integers(0, draft.config.vocab_size, count).tolist()
    sampling = data.draw(st.sampled_from([None, *SAMPLINGS]))
    drawn = Selection(
        sampling, seed=data.draw(st.integers(0, MAX_SEED)), penalties=data.draw(st.sampled_from(PENALTIES))
    )
    rule = drawn.acceptance(count // 2)
    assert_alike(draft, context, TreeLimits(depth, floors, *least, sharpness), rule)


def test_draws_among_many_tokens_are_those_of_numpys_noise(tmp_path: Path) -> None:
    """Most of 5,000 tokens are too unlikely to be looked at, unless the noise favours them."""
    checkpoints.write_checkpoint(checkpoints.make_model("llama", vocab_size=5000), tmp_path)
    config = describe_file(tmp_path / "config.json")
    with open_checkpoint(tmp_path) as checkpoint:
        weights = with_format(dense_weights(checkpoint.tensors, config), BF16)
    config = replace(config, logit_multiplier=2.0)
    decoder = native_copy(config, weights, Matrices(choose_engine(num_threads=2)), TARGETS["dense"])
    context, cache = list(range(60)), decoder.new_cache()
    rows = decoder.forward(context, cache)
    assert 2 < rows.std() < 5
    for number, sampling in enumerate([*SAMPLINGS, Sampling(0.05), Sampling(3.0)]):
        rule = CoupledAcceptance(sampling, MAX_SEED - number)
        for position in range(1, len(context) + 1):
            logits, limits = rows[position - 1], TreeLimits(1, [0.0] * 3, -inf, -inf, 1.5)
            key = np.array([rule.seed, position], np.uint64)
            noise = -np.log(-np.log(np.random.Generator(np.random.Philox(key=key)).random(5000)))
            with np.errstate(divide="ignore"):
                scores = np.log(distribution(logits, sampling)) + noise
            weights_of = np.exp(1.5 * (scores - scores.max()))
            assert rule.draw(logits, position) == int(scores.argmax())
            cache.truncate(position - 1)
            by_rule = rule.at_once(limits, context[:position])
            assert by_rule is not None
            grown = decoder.grow(context[position - 1 : position], cache, 5000, by_rule)
            assert grown is not None and grown.tokens[0] == int(scores.argmax())
            assert grown.own_chances[0] == pytest.approx(weights_of.max() / weights_of.sum(), rel=0.02)


def test_states_that_are_read_go_one_by_one(draft: Decoder) -> None:
    reading = Session(draft.new_cache())
    reading.states.want(Reads((0,)))
    limits = TreeLimits(2, [0.0], -inf, 0.0, 1.0)
    assert reading.grow(draft, [1, 2], draft.config.vocab_size, limits) is None and not reading.tokens


def test_what_cannot_be_evaluated_is_refused_and_nothing_changes(draft: Decoder) -> None:
    cache, vocab_size = draft.new_cache(), draft.config.vocab_size
    with pytest.raises(ModelError, match=f"token id {vocab_size}; ids from 0"):
        draft.grow([1, vocab_size], cache, vocab_size, TreeLimits(2, [0.0], -inf, 0.0, 1.0))
    with pytest.raises(ValueError, match="limits of a tree of 1 to 64 rows"):
        draft.grow([1], cache, vocab_size, TreeLimits(2, [], -inf, 0.0, 1.0))
    with pytest.raises(ValueError, match="vocab_size must be one of the head's rows"):
        draft.grow([1], cache, vocab_size + 1, TreeLimits(2, [0.0], -inf, 0.0, 1.0))
    assert cache.length == 0
