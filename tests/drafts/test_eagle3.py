"""EAGLE-3 heads against the package that defines their format and against torch, and every reason to refuse one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from eagle3_heads import TorchEagle3, eagle3_config, eagle3_tensors, open_eagle3, write_eagle3, write_tensors

from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError
from mxconv.kernels.engine import native_names
from mxconv.kernels.rowwise import rms_norm

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "eagle3"
KERNELS = ["numpy", *native_names()[:1]]
HIDDEN_SIZE, VOCAB_SIZE = 32, 60
KNOWN = [3, 4, 8, 9, 15, 17, 22, 30, 31, 44, 45, 58]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", sorted(path.name for path in VECTORS.iterdir()))
def test_heads_compute_what_the_speculators_package_does(case: str, kernel: str) -> None:
    """Behind every prefix of a text, and some tokens further."""
    head = open_eagle3(VECTORS / case, kernel)
    vectors = safetensors.numpy.load_file(VECTORS / case / "expected.safetensors")
    ids = head.config.layers_of(8)
    states, tokens = vectors["states"][[ids.index(layer) for layer in head.reads.layers]], vectors["tokens"].tolist()
    num_compared = 0
    for row in range(len(tokens) - 1):
        cache = head.new_cache()
        feature = head.advance(head.fuse(states[:, : row + 1]), tokens[1 : row + 2], cache)[-1:]
        for step in range(min(len(vectors["hidden"]), len(tokens) - 1 - row)):
            if step:
                feature = head.advance(feature, [tokens[row + 1 + step]], cache)
            hidden = vectors["hidden"][step, row]
            if head.config.norm_output:
                hidden = rms_norm(hidden, head.paired.norm, head.config.layer.rms_norm_eps)
            np.testing.assert_allclose(feature[0], hidden, rtol=1e-5, atol=1e-5)
            logits = head.logits(feature)[0]
            np.testing.assert_allclose(logits[head.tokens], vectors["logits"][step, row], rtol=1e-5, atol=1e-5)
            assert np.isneginf(np.delete(logits, head.tokens)).all()
            num_compared += 1
    assert num_compared == 9 + 8 + 7


def test_the_vectors_have_every_switch_and_both_vocabularies() -> None:
    configs = [Eagle3Config.from_file(path / "config.json") for path in VECTORS.iterdir()]
    for switch in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        assert {getattr(config, switch) for config in configs} == {False, True}
    assert {config.draft_vocab_size == config.vocab_size for config in configs} == {False, True}


@pytest.mark.parametrize(
    ("changes", "layer", "known"),
    [
        ({}, {}, None),
        ({"norm_before_residual": True}, {}, KNOWN),
        ({"target_hidden_size": 24, "norm_output": True}, {"num_key_value_heads": 4, "attention_bias": True}, KNOWN),
        ({"eagle_aux_hidden_state_layer_ids": [4, 0], "fc_norm": True}, {"num_hidden_layers": 2, "head_dim": 12}, None),
        (
            {"norm_before_fc": True, "norm_before_residual": True},
            {"model_type": "qwen3", "num_key_value_heads": 1, "rope_theta": 1e6},
            None,
        ),
    ],
    ids=["plain", "normed residual", "wide target", "two layers", "qwen3"],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_tree_of_continuations_is_that_of_torch_path_by_path(
    changes: dict[str, Any], layer: dict[str, Any], known: list[int] | None, kernel: str, tmp_path: Path
) -> None:
    """The text in two parts, and a tree in two frontiers, each row with the feature of its parent."""
    sizes = {"draft_vocab_size": len(known)} if known else {}
    config = eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, changes | sizes, layer)
    folder = write_eagle3(tmp_path / "head", config, known=known)
    head, torch_head = open_eagle3(folder, kernel), TorchEagle3(folder)
    rng, ids = np.random.default_rng(1), head.config.layers_of(8)
    text = rng.integers(0, VOCAB_SIZE, 7).tolist()
    states = rng.standard_normal((len(ids), 6, head.sizes.hidden_size)).astype(np.float32)  # in the order of the ids
    read = states[[ids.index(layer) for layer in head.reads.layers]]

    cache = head.new_cache()
    head.advance(head.fuse(read[:, :4]), text[1:5], cache)
    features = head.advance(head.fuse(read[:, 4:]), text[5:], cache)[-1:]
    parents, tokens = [-1, -1, 0, 0, 1, 2], [5, 6, 7, 8, 9, 10]
    for start, stop in ((0, 2), (2, 5), (5, 6)):
        tree = Tree(parents[:stop], start)
        above = features[[parent + 1 for parent in parents[start:stop]]]
        features = np.concatenate([features, head.advance(above, tokens[start:stop], cache, tree)])
    logits = head.logits(features)
    whole = Tree(parents)
    for row in range(-1, 6):
        drafted = [tokens[above] for above in whole.path(row)]
        expected = torch_head.logits(states, text, drafted)[-1]
        np.testing.assert_allclose(logits[row + 1][known or slice(None)], expected, rtol=1e-5, atol=1e-5)
        assert known is None or np.isneginf(np.delete(logits[row + 1], known)).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle"}, 'speculators_model_type is "eagle"; mxconv supports eagle3'),
        ({"draft_vocab_size": 61}, "draft_vocab_size is 61; at most the target's vocabulary, 60, is required"),
        ({"norm_before_fc": True, "fc_norm": True}, "fc_norm is true; with norm_before_fc, false is required"),
        (
            {"transformer_layer_config": {"model_type": "mistral"}},
            'model_type is "mistral"; mxconv supports llama, qwen3',
        ),
        ({"eagle_aux_hidden_state_layer_ids": []}, r"layer_ids is \[\]; a list of 1 to 64 layer numbers, or null"),
        ({"eagle_aux_hidden_state_layer_ids": [1, "2"]}, r'is \[1, "2"\]; a list of 1 to 64 layer numbers, or null'),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, changes)))
    with pytest.raises(ModelError, match=message):
        Eagle3Config.from_file(path)


@pytest.mark.parametrize(
    ("ids", "num_layers", "message"),
    [
        ([1, 5], 4, r"reads the states of layers 1, 5 \(eagle_aux_\w+\); different ones from 0 to 4"),
        ([2, 2], 4, "reads the states of layers 2, 2 "),
        (None, 2, "reads by default the states of layers 2, 1, -1 "),
    ],
)
def test_layers_that_a_target_does_not_have_are_refused(
    ids: list[int] | None, num_layers: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, {"eagle_aux_hidden_state_layer_ids": ids})))
    config = Eagle3Config.from_file(path)
    with pytest.raises(ModelError, match=message):
        config.layers_of(num_layers)


def test_layers_that_a_target_has() -> None:
    config = Eagle3Config.from_file(VECTORS / "norm-before-fc" / "config.json")
    assert config.layers_of(36) == (2, 18, 33)
    assert Eagle3Config.from_file(VECTORS / "qwen3" / "config.json").layers_of(3) == (3, 1)


SOME_TOKENS = eagle3_config(VOCAB_SIZE, HIDDEN_SIZE, {"draft_vocab_size": len(KNOWN)})


def some_tokens() -> dict[str, np.ndarray]:
    """The tensors of a head that knows some tokens."""
    tensors = eagle3_tensors(SOME_TOKENS, KNOWN)
    return {name: array.astype(np.float16) if array.dtype.kind == "f" else array for name, array in tensors.items()}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fc.weight", r"head: tensor fc.weight is missing; its shape \(32, 96\) is required"),
        ("layers.0.hidden_norm.weight", r"head: tensor layers.0.hidden_norm.weight is missing; its shape \(32,\)"),
        ("d2t", "head: tensor d2t is missing; with 12 of 60 tokens it is required"),
    ],
)
def test_a_tensor_that_is_missing_is_named(name: str, message: str, tmp_path: Path) -> None:
    tensors = some_tokens()
    del tensors[name]
    with pytest.raises(ModelError, match=message):
        open_eagle3(write_tensors(tmp_path / "head", SOME_TOKENS, tensors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d2t": np.zeros(11, np.int64)}, r"tensor d2t is I64 \[11\]; I64 \[12\] is required"),
        ({"d2t": np.zeros(12, np.float32)}, r"tensor d2t is F32 \[12\]; I64 \[12\] is required"),
        ({"d2t": np.full(12, 49, np.int64)}, "tensor d2t leads to token 60; 0 to 59 is required"),
        ({"d2t": np.full(12, -1, np.int64)}, "tensor d2t leads to token -1; 0 to 59 is required"),
        ({"d2t": np.full(12, 2**63 - 1, np.int64)}, "tensor d2t leads to token -?[0-9]+; 0 to 59 is required"),
        ({"d2t": -np.arange(12)}, "tensor d2t leads to one token twice; a token each is required"),
        ({"t2d": np.ones(59, bool)}, r"tensor t2d is BOOL \[59\]; BOOL \[60\] is required"),
        ({"t2d": np.ones(60, np.uint8)}, r"tensor t2d is U8 \[60\]; BOOL \[60\] is required"),
        ({"t2d": np.arange(60) < 12}, "tensor t2d marks other tokens than d2t leads to; the same are required"),
    ],
)
def test_vocabularies_that_are_refused(changes: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        open_eagle3(write_tensors(tmp_path / "head", SOME_TOKENS, some_tokens() | changes))


def test_a_head_may_be_without_t2d_and_have_short_integers(tmp_path: Path) -> None:
    tensors = some_tokens()
    del tensors["t2d"]
    tensors["d2t"] = tensors["d2t"].astype(np.int32)
    assert open_eagle3(write_tensors(tmp_path / "head", SOME_TOKENS, tensors)).tokens.tolist() == KNOWN
