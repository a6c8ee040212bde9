"""The DFlash head as it is trained: what the speculators package computes, and what mxconv drafts at run time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from dflash_heads import dflash_config, open_dflash, write_dflash

from mxconv.drafts.readers.dflash_config import LAYER_IDS, DflashConfig, config_for
from mxconv.kernels.engine import native_names
from mxconv.train.dflash_training import DflashModel

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "dflash"
HIDDEN_SIZE, VOCAB_SIZE, LENGTH = 32, 60, 12
KNOWN = [3, 4, 8, 9, 15, 17, 22, 30, 31, 44, 45, 58]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def load(folder: Path) -> DflashModel:
    """A head on disk as it is trained."""
    config = DflashConfig.from_file(folder / "config.json")
    model = DflashModel(config)
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    weights = {name: tensor.float() for name, tensor in stored.items() if name not in ("d2t", "t2d")}
    model.load_state_dict(weights)  # strict: the names are those of the file
    return model


def blocks(tokens: torch.Tensor, anchors: torch.Tensor, config: DflashConfig) -> torch.Tensor:
    ids = torch.full((len(tokens), len(anchors), config.block_size), config.mask_token_id)
    ids[..., 0] = tokens[:, anchors]
    return ids


def random_text(num_states: int, batch: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, VOCAB_SIZE, (batch, LENGTH), generator=generator)
    return tokens, 2 * torch.randn(num_states, batch, LENGTH, HIDDEN_SIZE, generator=generator)


def head_config(changes: dict[str, Any] | None = None, layer: dict[str, Any] | None = None) -> dict[str, Any]:
    values = dflash_config(VOCAB_SIZE, HIDDEN_SIZE, {"speculators_model_type": "dflash", **(changes or {})})
    return values | {"transformer_layer_config": values["transformer_layer_config"] | (layer or {})}


def test_all_blocks_of_a_text_are_those_of_the_speculators_package() -> None:
    folder = VECTORS / "dflash"
    model, vectors = load(folder), safetensors.torch.load_file(folder / "expected.safetensors")
    anchors = torch.arange(len(vectors["logits"]))
    ids = blocks(vectors["tokens"][None], anchors, model.config)
    with torch.no_grad():
        hidden = model.hidden(vectors["states"][:, None], vectors["embedding"][ids], anchors)
        logits = model(vectors["states"][:, None], vectors["embedding"][ids], anchors, vectors["head"])
    np.testing.assert_allclose((hidden @ vectors["head"].T)[0], vectors["logits"], **CLOSE)
    np.testing.assert_allclose(logits[0], vectors["logits"][:, 1:], **CLOSE)


@pytest.mark.parametrize("kernel", ["numpy", *native_names()[:1]])
@pytest.mark.parametrize(
    ("changes", "layer"),
    [
        ({}, {"num_hidden_layers": 1}),
        ({LAYER_IDS: [4, 0], "block_size": 3}, {"num_key_value_heads": 1, "rope_theta": 1e6}),
        ({"draft_vocab_size": len(KNOWN), LAYER_IDS: [2]}, {"num_key_value_heads": 4, "head_dim": 12}),
    ],
    ids=["one layer", "two states", "some tokens"],
)
def test_the_head_itself_drafts_what_was_trained(
    changes: dict[str, Any], layer: dict[str, Any], kernel: str, tmp_path: Path
) -> None:
    """After places of the text in no order, each with the cache of the run time."""
    config = head_config(changes, layer)
    folder = write_dflash(tmp_path / "head", config, known=KNOWN if "draft_vocab_size" in changes else None)
    given = torch.randn(2, VOCAB_SIZE, HIDDEN_SIZE, generator=torch.Generator().manual_seed(2)).half()
    embedding, output = given.float().unbind()
    safetensors.torch.save_file(
        {"embedding": given[0], **({} if "draft_vocab_size" in changes else {"head": given[1]})},
        folder / "expected.safetensors",
    )
    model, head = load(folder), open_dflash(folder, kernel)
    (folder / "expected.safetensors").unlink()
    layers = head.config.layers_of(8)
    tokens, states = random_text(len(layers))
    anchors = torch.tensor([7, 1, 2, 9])
    with torch.no_grad():
        logits = model(states, embedding[blocks(tokens, anchors, model.config)], anchors, output)
    for row, text in enumerate(tokens.tolist()):
        read = states[[layers.index(layer) for layer in head.reads.layers], row].numpy()
        for place, anchor in enumerate(anchors.tolist()):
            cache = head.new_cache()
            head.read(read[:, :anchor], cache)
            expected = head.head.multiply(head.block(text[anchor], cache)[1:])
            np.testing.assert_allclose(logits[row, place], expected, rtol=1e-4, atol=1e-4)


def test_a_block_sees_the_text_before_it_and_itself(tmp_path: Path) -> None:
    """Gradients of one block reach states before its anchor alone, and no other block; every weight moves."""
    model = load(write_dflash(tmp_path / "head", head_config({"draft_vocab_size": len(KNOWN)}), known=KNOWN))
    tokens, states = random_text(3)
    embedding = torch.randn(VOCAB_SIZE, HIDDEN_SIZE)
    anchors = torch.tensor([2, 6])
    embedded = embedding[blocks(tokens, anchors, model.config)].requires_grad_()
    memory: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, taken: Any, made: torch.Tensor) -> None:
        made.retain_grad()
        memory.append(made)

    model.hidden_norm.register_forward_hook(keep)
    logits = model(states.requires_grad_(), embedded, anchors)
    logits[:, 1].square().mean().backward()
    (read,) = memory
    assert read.grad is not None and embedded.grad is not None and states.grad is None
    assert read.grad[:, :6].abs().amin(-1).min() > 0 and not read.grad[:, 6:].any()
    assert embedded.grad[:, 1].abs().amin(-1).min() > 0 and not embedded.grad[:, 0].any()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_the_config_that_is_written_has_the_keys_of_the_package() -> None:
    """Beside those with which transformers describes any layer."""
    theirs = json.loads((VECTORS / "dflash" / "config.json").read_text())
    target = theirs["transformer_layer_config"] | {"tie_word_embeddings": True}
    ours = config_for(target, (3, 1), 2, 4, 60, 7)
    assert DflashConfig.from_dict(ours).layer.attentions[0].query_norm is not None
    assert set(ours) <= set(theirs)
    for key in set(ours) - {"transformer_layer_config", "speculators_config", "speculators_version"}:
        assert ours[key] == theirs[key], key
