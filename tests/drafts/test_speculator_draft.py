"""MLP speculators in hierarchies: the state that they read, their trees, and the target's own tokens as ever."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from packages import quantize
from reader_levels import check_all
from speculators import speculator_config, write_speculator
from tiny_levels import decoder_of
from trained_levels import write_noisy

from mxconv.arrays import F32
from mxconv.drafts.acceptance import GreedyAcceptance
from mxconv.drafts.guesses import SHARPNESS
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator
from mxconv.drafts.speculator import SpeculatorDraft, grow_candidates
from mxconv.engine.cache import KVCache
from mxconv.engine.states import States
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.speculation.selection import GREEDY

HIDDEN_SIZE, VOCAB_SIZE = 64, 1024  # of the trained model
CONFIG = speculator_config(HIDDEN_SIZE, VOCAB_SIZE, {"scale_input": True})


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A speculator that guesses at random, a 4-bit copy of it, and a package that has it as a level."""
    folder = tmp_path_factory.mktemp("speculators")
    speculator = write_speculator(folder / "speculator", CONFIG, "BF16")
    quantize(speculator, folder / "speculator-mxfp4", lm_head="quantize")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}", f"speculator:{speculator}", "prompt-lookup")
    quantize(write_noisy(folder / "source", 0.0), folder / "package", drafts=drafts)
    return folder / "package"


def test_it_reads_the_state_that_chose_the_last_token(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a plain pass over the text, bit for bit, whatever stood in between."""
    seen: list[tuple[list[int], F32]] = []
    contexts: list[list[int]] = []
    propose, begin = SpeculatorDraft.propose, MlpSpeculator.begin

    def note_context(self: SpeculatorDraft, context: Sequence[int], *rest: object) -> Proposal:
        contexts.append(list(context))
        return propose(self, context, *rest)  # type: ignore[arg-type]

    def note_state(self: MlpSpeculator, states: F32) -> F32:
        seen.append((contexts[-1], states.copy()))
        return begin(self, states)

    monkeypatch.setattr(SpeculatorDraft, "propose", note_context)
    monkeypatch.setattr(MlpSpeculator, "begin", note_state)
    with LoadedPackage(package, ["target", "speculator"]) as loaded:
        check_all(loaded.levels, [3], "chain", GREEDY)
        decoder = decoder_of(loaded.levels[0])
        assert len(seen) > 20
        for context, state in seen:
            states = States(normed_last=True)
            decoder.forward(context, KVCache(decoder.config), states=states)
            assert states.values is not None
            np.testing.assert_array_equal(state, states.values[0, -2:-1])


def test_the_candidate_tree_is_the_likeliest_paths_of_all() -> None:
    """Against all 4 x 3 x 2 paths, from logits that depend on a path alone."""
    top_k, vocab_size = (4, 3, 2), 20

    def logits(path: tuple[int, ...]) -> F32:
        rng = np.random.default_rng([1, *path])
        return rng.standard_normal(vocab_size).astype(np.float32) * 2

    paths: list[tuple[int, ...]] = []

    def evaluate(tokens: Sequence[int], tree: Tree) -> F32:
        for token, parent in zip(tokens, tree.parents[tree.num_cached :], strict=True):
            paths.append((*(paths[parent] if parent >= 0 else ()), token))
        return np.array([logits(path) for path in paths[-len(tokens) :]])

    acceptance = GreedyAcceptance()

    def chance(path: tuple[int, ...]) -> float:
        total = 1.0
        for depth, token in enumerate(path):
            guesses = acceptance.guesses(logits(path[:depth]), depth, 0.0, top_k[depth], SHARPNESS)
            total *= dict(zip(guesses.tokens, guesses.chances, strict=True)).get(token, 0.0)
        return total

    every = sorted(product(range(vocab_size), repeat=3), key=chance, reverse=True)
    assert chance(every[23]) > 0 == chance(every[24])
    for num_candidates in (1, 2, 5, 24):
        paths.clear()
        proposal = grow_candidates(logits(()), 0, evaluate, acceptance, top_k, num_candidates)
        assert proposal.parents is not None
        found: list[tuple[int, ...]] = []
        for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
            found.append((*(found[parent] if parent >= 0 else ()), token))
        assert {path for path in found if len(path) == 3} == set(every[:num_candidates])
        assert set(found) == {path[:depth] for path in every[:num_candidates] for depth in (1, 2, 3)}


@pytest.mark.parametrize("num_heads", [4, 5, 8, 12])
def test_a_deep_tree_has_a_share_of_a_pass_at_every_depth_and_fits_into_one(num_heads: int) -> None:
    top_k, num_rows = (6, 3, 2, *(1,) * num_heads)[:num_heads], 0
    random = np.random.default_rng(num_heads)

    def evaluate(tokens: Sequence[int], tree: Tree) -> F32:
        nonlocal num_rows
        num_rows += len(tokens)
        assert len(tree.parents) == num_rows <= MOST_ROWS
        return random.standard_normal((len(tokens), 50)).astype(np.float32) * 3

    first = random.standard_normal(50).astype(np.float32)
    proposal = grow_candidates(first, 0, evaluate, GreedyAcceptance(), top_k, 36)
    widths = proposal.widths
    assert len(widths) == num_heads  # whole paths
    assert 3 * MOST_ROWS // 4 <= len(proposal.tokens) < MOST_ROWS
    assert widths[-1] >= MOST_ROWS // num_heads // 2
