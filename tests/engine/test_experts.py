"""Experts in a pass: which are read, in what order they are added, and where they come from."""

import json
from collections.abc import Callable
from copy import copy
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import quantize
from row_invariance import assert_same_bits

from mxconv.arch.elements import Linear, Routing
from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.float16 import FP16
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.mlp import Router, WeightedMixture
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.weights import CheckedWeights, ModelWeights
from mxconv.errors import ModelError
from mxconv.kernels.matrix import DenseMatrix
from mxconv.package.package import Package

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")


STACKED = (
    "mixtral",
    "qwen2_moe",
    "granitemoe",
    "granitemoehybrid, with experts",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_5_moe",
    "qwen3_next, with experts",
)
TOKEN_IDS = list(range(3, 15))


def chosen_experts(decoder: Decoder, ids: list[int]) -> dict[int, set[int]]:
    """Of each layer with experts those that the tokens of a text chose."""
    found: dict[int, set[int]] = {}
    noting: Any = decoder.variant()
    for layer in noting.layers:
        if isinstance(layer.mlp, WeightedMixture):
            layer.mlp = copy(layer.mlp)
            layer.mlp.router = _Noting(layer.mlp.router, layer.index, found)
    noting.forward(ids, KVCache(decoder.config))
    return found


class _Noting:
    def __init__(self, router: Router, index: int, found: dict[int, set[int]]) -> None:
        self.router, self.index, self.found = router, index, found

    def __call__(self, x: np.ndarray, num_chosen: int) -> tuple[np.ndarray, np.ndarray]:
        numbers, shares = self.router(x, num_chosen)
        self.found.setdefault(self.index, set()).update(int(number) for number in numbers.ravel())
        return numbers, shares


@pytest.mark.parametrize(("name", "codec"), [("qwen3_moe", "bsfp"), ("granitemoe", "mxfp4")])
def test_a_package_opens_the_experts_that_rows_chose_and_no_others(
    family_of: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, codec: str
) -> None:
    family = family_of(name)
    source, package, ids = tmp_path / "source", tmp_path / "package", family.token_ids[:2]
    copytree(family.folder, source)
    write_tiny_tokenizer(source / "tokenizer.json", 96)
    quantize(source, package, codec=codec)
    opened: list[tuple[str, int | None]] = []
    for kind in ("mxfp4", "bsfp"):
        read = getattr(Package, kind)

        def noted(self: Package, record: Any, expert: int | None = None, read: Any = read) -> Any:
            opened.append((record.name, expert))
            return read(self, record, expert)

        monkeypatch.setattr(Package, kind, noted)
    with LoadedPackage(package, kernel="numpy", levels=["target"] if codec == "bsfp" else [codec]) as loaded:
        decoder = loaded.levels[0].decoder
        assert decoder is not None
        at_first = set(opened)
        chosen = chosen_experts(decoder, ids)
    read_later = {each for each in opened if each not in at_first or each[1] is not None}
    if name == "granitemoe":
        expected = {(layer, number) for layer, numbers in chosen.items() for number in numbers}
        assert {(int(tensor.split(".")[2]), expert) for tensor, expert in read_later} == expected
    else:  # the exact weights of experts that are stored by themselves
        numbers = {tuple(map(int, (tensor.split(".")[2], tensor.split(".")[5]))) for tensor, _ in read_later}
        assert numbers == {(layer, number) for layer, each in chosen.items() for number in each}


def logits(folder: Path) -> np.ndarray:
    config = describe_file(folder / "config.json")
    with open_checkpoint(folder) as checkpoint:
        decoder = Decoder(config, dense_weights(checkpoint.tensors, config), "experts")
        return decoder.forward(TOKEN_IDS, KVCache(config))


@pytest.mark.parametrize("family", STACKED)
def test_experts_under_the_names_of_transformers_in_memory_are_read_alike(family: str, tmp_path: Path) -> None:
    model = checkpoints.make_model(family)
    checkpoints.write_checkpoint(model, tmp_path / "published")
    model.bfloat16().save_pretrained(tmp_path / "own", save_original_format=False)
    assert np.array_equal(logits(tmp_path / "own"), logits(tmp_path / "published"))


def routed(logits: np.ndarray, count: int, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """What a router makes of given logits, which its matrix, the identity in float16, takes as they are."""
    width = logits.shape[1]
    identity = DenseMatrix(FP16.encode(np.eye(width, dtype=np.float32)), FP16)
    correction = changes.pop("correction", None)
    parts = Routing(width, count, Linear("gate"), correction=None if correction is None else "c", **changes)
    weights = ModelWeights({"gate.weight": identity}, {} if correction is None else {"c": correction})
    return Router(CheckedWeights(weights, "router"), parts, width)(logits, count)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1), st.data())
def test_routing_is_what_torch_makes_of_it(num_experts: int, num_rows: int, seed: int, data: st.DataObject) -> None:
    import torch

    count = data.draw(st.integers(1, num_experts))
    logits = np.random.default_rng(seed).standard_normal((num_rows, num_experts)).astype(np.float32) * 3
    given_logits = torch.from_numpy(logits)
    numbers, shares = routed(logits, count)
    best, order = torch.topk(torch.softmax(given_logits, -1), count)
    assert np.array_equal(numbers, order.numpy())
    assert np.allclose(shares, best.numpy(), rtol=1e-5, atol=1e-7)
    _, normalized = routed(logits, count, is_normalized=True)
    assert np.allclose(normalized, (best / best.sum(-1, keepdim=True)).numpy(), rtol=1e-5)
    _, of_chosen = routed(logits, count, score="softmax_of_chosen")
    assert np.allclose(of_chosen, torch.softmax(torch.topk(given_logits, count)[0], -1).numpy(), rtol=1e-5)


def test_of_equal_scores_the_first_experts_are_chosen() -> None:
    numbers, shares = routed(np.zeros((2, 7), np.float32), 3, is_normalized=True)
    assert numbers.tolist() == [[0, 1, 2]] * 2
    assert np.allclose(shares, 1 / 3)
    numbers, _ = routed(
        np.zeros((1, 8), np.float32), 2, score="sigmoid", num_groups=4, num_chosen_groups=1,
        correction=np.array([0, 0, 0, 0, 0, 0, 1, 0], np.float32),
    )  # fmt: skip
    assert numbers.tolist() == [[6, 7]]


def test_fewer_experts_are_the_best_ones_with_shares_made_anew(family_of: Callable[[str], Any]) -> None:
    family = family_of("qwen3_moe")
    fewer = family.decoder.variant(num_experts=1)
    text, ids = "config.json", family.token_ids[:24]
    values = json.loads((family.folder / text).read_text()) | {"num_experts_per_tok": 1}
    trained = Decoder(_described(values, family.folder), family.weights, "of one expert")
    expected = trained.forward(ids, KVCache(trained.config))
    assert_same_bits(fewer.forward(ids, KVCache(family.config)), expected, "one expert")
    whole = family.decoder.forward(ids, KVCache(family.config))
    assert (whole != expected).any()
    assert (family.decoder.variant(num_experts=2).forward(ids, KVCache(family.config)) != expected).any()


def _described(values: dict[str, Any], folder: Path) -> Any:
    path = folder.parent / f"{folder.name}-changed.json"
    path.write_text(json.dumps(values))
    return describe_file(path)


def test_without_experts_what_is_shared_remains(family_of: Callable[[str], Any]) -> None:
    family = family_of("glm4_moe")
    shared = family.decoder.variant(num_experts=0)
    logits = shared.forward(family.token_ids[:12], KVCache(family.config))
    mixture = family.decoder.layers[-1].mlp
    assert isinstance(mixture, WeightedMixture) and mixture.shared is not None
    x = np.random.default_rng(1).standard_normal((3, 48)).astype(np.float32)
    assert_same_bits(mixture.with_fewer(0)(x), mixture.shared(x), "shared alone")
    assert np.isfinite(logits).all()


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("qwen3", 1, r"^tiny: 1 experts of qwen3, whose layers have none; a mixture of experts is required\."),
        ("qwen3_moe", 3, r"^tiny: 3 experts of each layer; 0 to 2, fewer than the 3 that the model was trained with, "),
    ],
)
def test_as_many_experts_as_ever_are_no_draft(
    family_of: Callable[[str], Any], name: str, count: int, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        family_of(name).decoder.variant(num_experts=count)
