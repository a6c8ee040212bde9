"""The EAGLE-3 head as it is trained: what the speculators package computes, and what mxconv drafts at run time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from head_files import eagle3_config, open_eagle3, write_eagle3
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.drafts.eagle3 import Eagle3Config
from mxconv.kernels.engine import native_names
from mxconv.train.eagle3_training import Eagle3Model, attend

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "eagle3" / "llama"
HIDDEN_SIZE, VOCAB_SIZE, LENGTH, BLOCK = 32, 60, 12, 4
KNOWN = [3, 4, 8, 9, 15, 17, 22, 30, 31, 44, 45, 58]
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def load(folder: Path, num_layers: int = 8) -> tuple[Eagle3Model, torch.Tensor]:
    """A head on disk as it is trained, and its embedding."""
    values = json.loads((folder / "config.json").read_text())
    layers = Eagle3Config.from_dict(values).layers_of(num_layers)
    model = Eagle3Model(Eagle3Config.from_dict(values | {LAYER_IDS: list(layers)}))
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    embedding = stored.pop("embed_tokens.weight").float()
    weights = {name: tensor.float() for name, tensor in stored.items() if name not in ("d2t", "t2d")}
    model.load_state_dict(weights)  # strict: the names are those of the file
    return model, embedding


def test_it_unrolls_as_the_speculators_package_does() -> None:
    """Every step of every prefix, of a head as new ones are."""
    model, embedding = load(VECTORS)
    vectors = safetensors.torch.load_file(VECTORS / "expected.safetensors")
    with torch.no_grad():
        logits = model(vectors["states"][:, None], embedding[vectors["tokens"]][None], len(vectors["hidden"]))
    for step, found in enumerate(logits):
        rows = len(vectors["tokens"]) - 1 - step
        assert found.shape[1] == rows
        np.testing.assert_allclose(found[0].numpy(), vectors["logits"][step, :rows], rtol=1e-5, atol=1e-5)


def random_text(num_states: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB_SIZE, (batch, LENGTH), generator=generator)
    return tokens, 2 * torch.randn(num_states, batch, LENGTH, HIDDEN_SIZE, generator=generator)


@pytest.mark.parametrize("kernel", ["numpy", *native_names()[:1]])
@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({}, {}),
        ({"draft_vocab_size": len(KNOWN)}, {"num_key_value_heads": 4}),
        ({LAYER_IDS: [4, 0]}, {"head_dim": 12, "rope_theta": 1e6}),
    ],
    ids=["plain", "some tokens", "two states"],
)
def test_the_head_itself_drafts_what_was_trained(
    changes: dict[str, Any], layer: dict[str, Any], kernel: str, tmp_path: Path
) -> None:
    """Behind every prefix, with the cache of the run time, the tokens of the text one after another."""
    folder = write_eagle3(
        tmp_path / "head",
        eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, changes, layer),
        known=KNOWN if "draft_vocab_size" in changes else None,
    )
    (model, embedding), head = load(folder), open_eagle3(folder, kernel)
    ids = head.config.layers_of(8)
    tokens, states = random_text(len(ids))
    with torch.no_grad():
        logits = model(states, embedding[tokens], BLOCK)
    for row, text in enumerate(tokens.tolist()):
        read = states[[ids.index(layer) for layer in head.reads.layers], row].numpy()
        for place in range(row, LENGTH - 1, 1 + 3 * row):
            cache = head.new_cache()
            made = head.advance(head.fuse(read[:, : place + 1]), text[1 : place + 2], cache)[-1:]
            for step in range(min(BLOCK, LENGTH - 1 - place)):
                if step:
                    made = head.advance(made, [text[place + 1 + step]], cache)
                expected = head.logits(made)[0][head.tokens]
                np.testing.assert_allclose(logits[step][row, place], expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=12)
@given(st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 10), st.integers(0, 99))
def test_attention_is_that_of_a_mask_over_all_steps(
    length: int, num_steps: int, kv_heads: int, most_rows: int, seed: int
) -> None:
    """torch's own attention over every step's keys, with the first step's triangle and a diagonal for each later one.

    So are the gradients, whether rows attend all at once or a few at a time.
    """
    rows = max(length - num_steps + 1, 1)
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int, num_heads: int) -> torch.Tensor:
        return torch.randn(2, count, num_heads, 6, generator=generator, requires_grad=True)

    queries = draw(rows, 2 * kv_heads)
    seen = [
        (draw(rows + num_steps - 1 - s, kv_heads), draw(rows + num_steps - 1 - s, kv_heads)) for s in range(num_steps)
    ]
    mask = torch.cat(
        [(torch.ones if step == 0 else torch.eye)(rows, rows).tril().bool() for step in range(num_steps)], 1
    )
    keys, values = (torch.cat([made[part][:, :rows] for made in seen], 1).transpose(1, 2) for part in (0, 1))
    expected = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(1, 2), keys, values, mask, enable_gqa=True
    )
    expected = expected.transpose(1, 2).flatten(2)
    found = attend(queries, seen, most_rows)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    given = [queries, *(part for made in seen for part in made)]
    weights = torch.randn(expected.shape, generator=generator)
    ours, theirs = (torch.autograd.grad((made * weights).sum(), given) for made in (found, expected))
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)


def test_what_is_trained_and_what_is_given(tmp_path: Path) -> None:
    """Every weight moves, and later steps' errors reach the first step; the target's states are given."""
    model, embedding = load(write_eagle3(tmp_path / "head", eagle3_config(VOCAB_SIZE, HIDDEN_SIZE)))
    tokens, states = random_text(3)
    states.requires_grad_()
    logits = model(states, embedding[tokens], BLOCK)
    logits[-1].square().mean().backward()
    assert states.grad is None
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
