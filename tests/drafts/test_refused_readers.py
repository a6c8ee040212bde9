"""Drafts that read hidden states and are refused: by what their config.json says, and by their tensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY_LLAMA, llama_tensors
from gemma4_assistants import CLUSTERS, make_assistant
from head_files import (
    dflash_config,
    eagle3_config,
    eagle3_tensors,
    halves,
    open_eagle3,
    write_tensors,
)
from reader_levels import open_reader
from speculators import speculator_config, speculator_tensors
from spires import spire_config, spire_tensors

from mxconv.drafts.dflash import DflashConfig
from mxconv.drafts.eagle3 import Eagle3Config
from mxconv.drafts.gemma4_assistant import AssistantConfig
from mxconv.drafts.reader_kind import ReaderConfig
from mxconv.drafts.speculator import SpeculatorConfig
from mxconv.drafts.spire import SpireConfig
from mxconv.errors import ModelError

HIDDEN_SIZE, VOCAB_SIZE = 64, 60
KNOWN = [3, 4, 8, 9, 15, 17, 22, 30, 31, 44, 45, 58]
EAGLE3 = eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, {"draft_vocab_size": len(KNOWN)})
DFLASH = dflash_config(VOCAB_SIZE, HIDDEN_SIZE)
SPECULATOR = speculator_config(HIDDEN_SIZE, VOCAB_SIZE)
SPIRE = spire_config(TINY_LLAMA | {"num_hidden_layers": 4}, (1, 3))
ASSISTANT = json.loads(make_assistant().config.to_json_string())
KINDS: dict[str, tuple[type[ReaderConfig], Mapping[str, Any]]] = {
    "eagle3": (Eagle3Config, EAGLE3),
    "dflash": (DflashConfig, DFLASH),
    "speculator": (SpeculatorConfig, SPECULATOR),
    "spire": (SpireConfig, SPIRE),
    "gemma4-assistant": (AssistantConfig, ASSISTANT),
}
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
TEXT_OF_3 = {"text_config": {"model_type": "gemma3_text"}}
GPT2 = {"transformer_layer_config": {"model_type": "gpt2"}}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("eagle3", {"speculators_model_type": "eagle"}, 'speculators_model_type is "eagle"; mxconv supports eagle3'),
        ("eagle3", {"draft_vocab_size": 61}, "is 61; at most the target's vocabulary, 60, is required"),
        ("eagle3", {"norm_before_fc": True, "fc_norm": True}, "fc_norm is true; with norm_before_fc, false is req"),
        ("eagle3", GPT2, 'model_type is "gpt2"; mxconv supports llama, qwen3'),
        ("eagle3", {LAYER_IDS: []}, r"layer_ids is \[\]; a list of 1 to 64 layer numbers, or null"),
        ("eagle3", {LAYER_IDS: [1, "2"]}, r'is \[1, "2"\]; a list of 1 to 64 layer numbers, or null'),
        ("dflash", {"speculators_model_type": "dspark"}, 'speculators_model_type is "dspark"; mxconv supports dflash'),
        ("dflash", {"draft_vocab_size": 61}, "is 61; at most the target's vocabulary, 60, is required"),
        ("dflash", {"target_hidden_size": 32}, "is 32; the layers' own hidden_size, 64, or null is required"),
        ("dflash", {"block_size": 1}, "block_size is 1; 2 to 64 rows are required"),
        ("dflash", {"mask_token_id": 60}, "mask_token_id is 60; a token from 0 to 59 is required"),
        ("dflash", {"mask_token_id": None}, "mask_token_id is null; a token from 0 to 59 is required"),
        ("dflash", GPT2, 'model_type is "gpt2"; mxconv supports llama, qwen3'),
        ("dflash", {"aux_hidden_state_layer_ids": ["1"]}, r'layer_ids is \["1"\]; a list of 1 to 64 layer'),
        ("speculator", {"model_type": "llama"}, 'model_type is "llama"; mxconv supports mlp_speculator'),
        ("speculator", {"n_predict": 65}, "n_predict is 65; at most 64 stages"),
        ("speculator", {"inner_dim": -1}, "inner_dim is -1; an integer from 1"),
        ("speculator", {"top_k_tokens_per_head": [4, 3]}, r"is \[4, 3\]; a list of n_predict, 3, numbers"),
        ("speculator", {"top_k_tokens_per_head": [4, 3, 0]}, r"is \[4, 3, 0\]; a list of n_predict, 3, numbers from"),
        ("spire", {"model_type": "llama"}, 'model_type is "llama"; mxconv supports spire'),
        ("spire", {"layer_type": "spire"}, 'layer_type is "spire"; mxconv supports llama, mistral, qwen2, qwen3'),
        ("spire", {"target_layers": None}, "is null; a list of num_hidden_layers, 2, numbers of layers from 0"),
        ("spire", {"target_layers": [1, -1]}, r"target_layers is \[1, -1\]; a list of num_hidden_layers, 2, numbers"),
        ("spire", {"target_layers": [1, True]}, r"is \[1, true\]; a list of num_hidden_layers, 2, numbers"),
        ("spire", {"sink": -1}, "sink is -1; an integer from 0 to 65536"),
        ("spire", {"window": 0}, "window is 0; an integer from 1 to 65536"),
        ("spire", {"window": "all"}, 'window is "all"; an integer from 1 to 65536'),
        ("spire", {"past_memory": "none"}, 'past_memory is "none"; mxconv supports target, embeddings'),
        ("gemma4-assistant", {"model_type": "gemma4"}, 'is "gemma4"; mxconv supports gemma4_assistant'),
        ("gemma4-assistant", TEXT_OF_3, 'is "gemma3_text"; mxconv supports gemma4_text'),
        ("gemma4-assistant", {"text_config": {"hidden_size_per_layer_input": 8}}, "_input is 8; 0 is required"),
        ("gemma4-assistant", {"text_config": {"enable_moe_block": True}}, "is true; false is required"),
        ("gemma4-assistant", CLUSTERS | {"num_centroids": 7}, "num_centroids is 7; a divisor of 96, and as many as"),
    ],
)
def test_configs(kind: str, changes: dict[str, Any], message: str) -> None:
    config, values = KINDS[kind]
    config.from_dict(values)
    changed = {key: values[key] | value if isinstance(value, dict) else value for key, value in changes.items()}
    with pytest.raises(ModelError, match=message):
        config.from_dict({**values, **changed})


@pytest.mark.parametrize(
    ("ids", "num_layers", "message"),
    [
        ([1, 5], 4, r"reads the states of layers 1, 5 \(eagle_aux_\w+\); different ones from 0 to 4"),
        ([2, 2], 4, "reads the states of layers 2, 2 "),
        (None, 2, "reads by default the states of layers 2, 1, -1 "),
    ],
)
def test_layers_that_a_target_does_not_have(ids: list[int] | None, num_layers: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Eagle3Config.from_dict(EAGLE3 | {LAYER_IDS: ids}).layers_of(num_layers)


TENSORS = {
    "eagle3": eagle3_tensors(EAGLE3, KNOWN),
    "speculator": speculator_tensors(SPECULATOR),
    "spire": spire_tensors(llama_tensors(TINY_LLAMA | {"num_hidden_layers": 4}, "F32"), SPIRE),
}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("eagle3", {"fc.weight": None}, r"head: tensor fc.weight is missing; its shape \(64, 192\) is required"),
        ("eagle3", {"layers.0.hidden_norm.weight": None}, r"layers.0.hidden_norm.weight is missing; its shape \(64,\)"),
        ("eagle3", {"d2t": None}, "head: tensor d2t is missing; with 12 of 60 tokens it is required"),
        ("eagle3", {"d2t": np.zeros(11, np.int64)}, r"tensor d2t is I64 \[11\]; I64 \[12\] is required"),
        ("eagle3", {"d2t": np.zeros(12, np.int16)}, r"tensor d2t is I16 \[12\]; I64 \[12\] is required"),
        ("eagle3", {"d2t": np.full(12, 49, np.int64)}, "tensor d2t leads to token 60; 0 to 59 is required"),
        ("eagle3", {"d2t": np.full(12, -1, np.int64)}, "tensor d2t leads to token -1; 0 to 59 is required"),
        ("eagle3", {"d2t": np.full(12, 2**63 - 1, np.int64)}, "tensor d2t leads to token -?[0-9]+; 0 to 59 is"),
        ("eagle3", {"d2t": -np.arange(12)}, "tensor d2t leads to one token twice; a token each is required"),
        ("eagle3", {"t2d": np.ones(59, bool)}, r"tensor t2d is BOOL \[59\]; BOOL \[60\] is required"),
        ("eagle3", {"t2d": np.ones(60, np.uint8)}, r"tensor t2d is U8 \[60\]; BOOL \[60\] is required"),
        ("eagle3", {"t2d": np.arange(60) < 12}, "tensor t2d marks other tokens than d2t leads to; the same are"),
        ("speculator", {"speculator.head.2.weight": None}, r"head.2.weight is missing; its shape \(60, 48\)"),
        ("speculator", {"speculator.ln.0.bias": None}, r"tensor speculator.ln.0.bias is missing; its shape \(48,\)"),
        ("spire", {"spire.memory_weights": None}, r"tensor spire.memory_weights is missing; its shape \(2, 3\)"),
        ("spire", {"spire.memory_weights": np.ones((2, 2))}, r"has shape \(2, 2\); config.json requires \(2, 3\)"),
        ("spire", {"lm_head.weight": None}, r"tensor lm_head.weight is missing; its shape \(96, 64\) is required"),
        ("spire", {"lm_head.weight": np.ones((96, 63))}, r"has shape \(96, 63\); config.json requires \(96, 64\)"),
    ],
)
def test_tensors(kind: str, changes: dict[str, np.ndarray | None], message: str, tmp_path: Path) -> None:
    given = TENSORS[kind] | {name: array for name, array in changes.items() if array is not None}
    tensors = halves({name: array for name, array in given.items() if changes.get(name, array) is not None})
    folder = write_tensors(tmp_path / "head", dict(KINDS[kind][1]), tensors)
    with pytest.raises(ModelError, match=message):
        open_eagle3(folder) if kind == "eagle3" else open_reader(kind, folder)
