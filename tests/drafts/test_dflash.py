"""DFlash heads against the package that defines their format, and every reason to refuse one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from dflash_heads import dflash_config, open_dflash

from mxconv.drafts.readers.dflash_config import DflashConfig
from mxconv.errors import ModelError
from mxconv.kernels.engine import native_names

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "dflash"
KERNELS = ["numpy", *native_names()[:1]]
HIDDEN_SIZE, VOCAB_SIZE = 64, 60


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", sorted(path.name for path in VECTORS.iterdir()))
def test_blocks_are_those_of_the_speculators_package(case: str, kernel: str) -> None:
    """After every prefix of a text, with a cache that grows by one token after another."""
    head = open_dflash(VECTORS / case, kernel)
    vectors = safetensors.numpy.load_file(VECTORS / case / "expected.safetensors")
    ids = head.config.layers_of(8)
    states, text = vectors["states"][[ids.index(layer) for layer in head.reads.layers]], vectors["tokens"].tolist()
    cache = head.new_cache()
    for place, expected in enumerate(vectors["logits"]):
        logits = head.head.multiply(head.block(text[place], cache))
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
        head.read(states[:, place : place + 1], cache)
    assert cache.length == len(vectors["logits"]) == 8


def test_the_vectors_have_every_switch() -> None:
    configs = [DflashConfig.from_file(path / "config.json") for path in VECTORS.iterdir()]
    assert {config.layer.windows[0] is None for config in configs} == {False, True}
    assert {config.draft_vocab_size == config.vocab_size for config in configs} == {False, True}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, 'speculators_model_type is "eagle3"; mxconv supports dflash'),
        ({"speculators_model_type": "dspark"}, 'speculators_model_type is "dspark"; mxconv supports dflash'),
        ({"draft_vocab_size": 61}, "draft_vocab_size is 61; at most the target's vocabulary, 60, is required"),
        ({"target_hidden_size": 32}, "target_hidden_size is 32; the layers' own hidden_size, 64, or null is required"),
        ({"block_size": 1}, "block_size is 1; 2 to 64 rows are required"),
        ({"mask_token_id": 60}, "mask_token_id is 60; a token from 0 to 59 is required"),
        ({"mask_token_id": None}, "mask_token_id is null; a token from 0 to 59 is required"),
        ({"transformer_layer_config": {"model_type": "gpt2"}}, 'model_type is "gpt2"; mxconv supports llama, qwen3'),
        ({"aux_hidden_state_layer_ids": ["1"]}, r'aux_hidden_state_layer_ids is \["1"\]; a list of 1 to 64 layer'),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dflash_config(VOCAB_SIZE, HIDDEN_SIZE, changes)))
    with pytest.raises(ModelError, match=message):
        DflashConfig.from_file(path)


def test_the_authors_own_config_says_the_same() -> None:
    """It is that of a Qwen 3, with a section more, in which a layer has the number of what goes into it."""
    values = dflash_config(VOCAB_SIZE, HIDDEN_SIZE, {"sliding_window_non_causal": True})
    for place in ("top", "section"):
        own = {"mask_token_id": 1, "target_layer_ids": [-1, 1, 2]}
        published = values["transformer_layer_config"] | {"dflash_config": own}
        (published if place == "top" else own)["block_size"] = 5
        assert DflashConfig.from_dict(published) == DflashConfig.from_dict(values)
    with pytest.raises(ModelError, match="dflash_config: target_layer_ids is missing; a list of layer numbers is"):
        DflashConfig.from_dict(published | {"dflash_config": {"mask_token_id": 1, "block_size": 5}})


def test_layers_that_are_called_llamas_norm_queries_and_keys_too() -> None:
    values = dflash_config(VOCAB_SIZE, HIDDEN_SIZE)
    layer = values["transformer_layer_config"]
    as_llama = {key: value for key, value in layer.items() if key != "head_dim"} | {"model_type": "llama"}
    assert layer["head_dim"] == HIDDEN_SIZE // layer["num_attention_heads"]
    config = DflashConfig.from_dict(values | {"transformer_layer_config": as_llama})
    assert config.layer == DflashConfig.from_dict(values).layer
    assert config.layer.attentions[0].query_norm is not None
