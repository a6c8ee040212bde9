"""The MLP speculator against torch, in every layout that the Hub has, and its candidate trees."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reader_levels import open_reader
from speculators import speculator_config, torch_logits, write_speculator
from tiny_levels import paths_of

from mxconv.arrays import F32
from mxconv.drafts.speculator import MlpSpeculator, SpeculatorConfig, grow_candidates
from mxconv.engine.activations import exact_gelu
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.kernels.engine import native_names
from mxconv.speculation.acceptance import GreedyAcceptance
from mxconv.speculation.proposal import SHARPNESS

EMB_DIM, VOCAB_SIZE = 32, 60


def logits_of(speculator: MlpSpeculator, state: np.ndarray, tokens: list[int]) -> list[np.ndarray]:
    states, found = speculator.begin(state[None]), []
    for stage, token in zip(range(len(speculator.stages)), tokens, strict=False):
        states = speculator.advance(stage, states, [token])
        found.append(speculator.logits(stage, states)[0])
    return found


@pytest.mark.parametrize("kernel", ["numpy", *native_names()[:1]])
@pytest.mark.parametrize(
    ("tied", "scaled", "changes"),
    [
        (False, False, {}),
        (False, True, {"inner_dim": 0}),
        (True, False, {"n_predict": 5, "top_k_tokens_per_head": [4, 3, 2, 2, 2]}),
        (True, True, {}),
    ],
)
def test_logits_are_those_of_torch(
    tied: bool, scaled: bool, changes: dict[str, Any], kernel: str, tmp_path: Path
) -> None:
    config = speculator_config(EMB_DIM, VOCAB_SIZE, {"tie_weights": tied, "scale_input": scaled, **changes})
    folder = write_speculator(tmp_path / "speculator", config)
    rng = np.random.default_rng(1)
    state = (3 * rng.standard_normal(EMB_DIM)).astype(np.float32)
    tokens = rng.integers(0, VOCAB_SIZE, 5).tolist()
    ours, theirs = (
        logits_of(open_reader("speculator", folder, kernel), state, tokens),
        torch_logits(folder, state, tokens),
    )
    assert len(ours) == config["n_predict"]
    for own, reference in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(own, reference, rtol=1e-5, atol=1e-5)


def test_rows_do_not_depend_on_their_batch(tmp_path: Path) -> None:
    folder = write_speculator(tmp_path / "speculator", speculator_config(EMB_DIM, VOCAB_SIZE))
    speculator = open_reader("speculator", folder)
    rng = np.random.default_rng(2)
    states, tokens = rng.standard_normal((7, EMB_DIM)).astype(np.float32), rng.integers(0, VOCAB_SIZE, 7).tolist()
    together = speculator.logits(0, speculator.advance(0, speculator.begin(states), tokens))
    for row, (state, token) in enumerate(zip(states, tokens, strict=True)):
        alone = speculator.logits(0, speculator.advance(0, speculator.begin(state[None]), [token]))
        np.testing.assert_array_equal(alone[0], together[row])


def test_gelu_is_exact_to_float32_arithmetic() -> None:
    x = np.linspace(-12, 12, 100_001, dtype=np.float32)
    exact = torch.nn.functional.gelu(torch.from_numpy(x).double()).numpy()
    assert np.abs(exact_gelu(x) - exact).max() < 8e-7
    np.testing.assert_array_equal(exact_gelu(np.array([0, 100, -100], np.float32)), [0, 100, 0])


def test_a_config_survives_being_written(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(speculator_config(EMB_DIM, VOCAB_SIZE, {"tie_weights": True, "scale_input": True})))
    config = SpeculatorConfig.from_file(path)
    path.write_text(json.dumps(config.to_dict()))
    assert SpeculatorConfig.from_file(path) == config
    assert config.top_k_tokens_per_head == (4, 3, 2) and config.tie_weights and config.scale_input


def test_what_a_config_may_leave_out(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mlp_speculator", "emb_dim": 8, "n_predict": 2, "vocab_size": 9}))
    config = SpeculatorConfig.from_file(path)
    assert (config.inner_dim, config.n_candidates, config.top_k_tokens_per_head) == (8, 5, (5, 4))
    assert not config.tie_weights and not config.scale_input


def test_the_candidate_tree_is_the_likeliest_paths_of_all() -> None:
    """Against all 4 x 3 x 2 paths, from logits that depend on a path alone."""
    top_k, vocab_size = (4, 3, 2), 9

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
        found = paths_of(proposal)
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
