"""Levels evaluated on texts, beside transformers on the codecs' values; scores of distributions, beside torch's."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_tokenizer
from dequantized import dequantized
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from packages import quantize
from trained_levels import write_renumbered

from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.kernels.engine import native_names
from mxconv.package.manifest import read_manifest
from mxconv.verification.evaluation import (
    CHUNK_ROWS,
    Evaluation,
    TokenScores,
    divergence,
    evaluate,
    log_softmax,
    measure,
    part_decoders,
)
from mxconv.verification.scored_texts import ScoredText, answers, windows

torch = pytest.importorskip("torch", reason="the oracle")

RANDOM = np.random.default_rng(0)
NUM_TOKENS = 2 * CHUNK_ROWS + 7  # more than a chunk, and no whole number of them


def scored(target: np.ndarray, logits: np.ndarray, tokens: np.ndarray) -> TokenScores:
    scores = TokenScores()
    scores.add(target, logits, tokens)
    return scores


def test_figures_are_torchs() -> None:
    target, logits = (RANDOM.normal(0, 3, (NUM_TOKENS, 50)).astype(np.float32) for _ in range(2))
    tokens = RANDOM.integers(0, 50, NUM_TOKENS)
    found = scored(target, logits, tokens).quality("draft")
    p, q = (torch.log_softmax(torch.tensor(x, dtype=torch.float64), -1) for x in (target, logits))
    nll = torch.nn.functional.nll_loss(q, torch.tensor(tokens), reduction="none")
    kl = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    same = (p.argmax(-1) == q.argmax(-1)).double()
    root = NUM_TOKENS**0.5
    assert found.name == "draft"
    assert found.perplexity == pytest.approx(float(nll.mean().exp()), rel=1e-12)
    assert found.perplexity_error == pytest.approx(float(nll.mean().exp() * nll.std() / root), rel=1e-12)
    assert found.mean_kl == pytest.approx(float(kl.mean()), rel=1e-12)
    assert found.mean_kl_error == pytest.approx(float(kl.std() / root), rel=1e-12)
    assert found.p99_kl == pytest.approx(float(kl.quantile(0.99)), rel=1e-12)
    assert found.agreement == pytest.approx(float(same.mean()), rel=1e-12)
    assert found.agreement_error == pytest.approx(float(same.std() / root), rel=1e-12)


@given(arrays(np.float32, (3, 5), elements=st.floats(-100, 100, width=32)))
def test_a_model_does_not_diverge_from_itself_nor_from_a_shifted_one(logits: np.ndarray) -> None:
    exact = log_softmax(logits)
    assert np.allclose(np.exp(exact).sum(axis=-1), 1)
    assert (divergence(exact, exact) == 0).all()
    assert np.allclose(divergence(exact, log_softmax(logits.astype(np.float64) + 7)), 0, atol=1e-9)


def test_what_the_target_never_chooses_adds_nothing() -> None:
    target = log_softmax(np.array([[0.0, 0.0, -np.inf]], np.float32))
    model = log_softmax(np.array([[0.0, 0.0, 0.0]], np.float32))
    assert divergence(target, model)[0] == pytest.approx(np.log(3 / 2))
    assert divergence(model, target)[0] == np.inf


def test_what_is_not_finite_is_no_figure() -> None:
    tokens = np.zeros(2, np.int64)
    never = scored(np.zeros((2, 3), np.float32), np.array([[-np.inf, 0, 0], [0, 0, 0]], np.float32), tokens)
    found = never.quality("draft")
    assert found.perplexity is found.perplexity_error is found.mean_kl is found.mean_kl_error is None
    assert found.agreement == 0.5
    nan = scored(np.full((1, 3), np.nan, np.float32), np.zeros((1, 3), np.float32), tokens[:1]).quality("draft")
    assert nan.perplexity == pytest.approx(3)
    assert nan.mean_kl is nan.p99_kl is None


def test_padding_of_one_of_two_matrices_counts_in_neither() -> None:
    logits = RANDOM.normal(0, 3, (4, 6)).astype(np.float32)
    padded = np.concatenate([logits, np.full((4, 2), 9, np.float32)], axis=1)
    tokens = np.arange(4)
    for pair in ((logits, padded), (padded, logits)):
        found = scored(*pair, tokens).quality("draft")
        assert (found.mean_kl, found.agreement) == (0, 1)
        assert found.perplexity == scored(logits, logits, tokens).quality("draft").perplexity


PYLIB = Path(__file__).parents[2] / "examples" / "models" / "pylib-1.5m"
CONTEXT = 32


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(Path(json.__file__).read_text()[:6000])
    return path


@pytest.fixture(scope="module", params=["mxfp4", "bsfp"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("evaluated") / request.param
    quantize(PYLIB, package, codec=request.param, drafts=("streaming", "prompt-lookup"))
    return package


def evaluated(package: Path, text: Path, num_tokens: int = 10 * CONTEXT, **options: Any) -> Evaluation:
    return evaluate(package, lambda loaded: windows(loaded, text, CONTEXT, num_tokens), num_threads=1, **options)


def transformers_logits(values: dict[str, np.ndarray], texts: list[ScoredText]) -> list[Any]:
    """The logits of the embedded model with some of its matrices replaced; the output head apart from the embedding."""
    torch = pytest.importorskip("torch", reason="the oracle")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(PYLIB, dtype=torch.float32)
    head = values.pop("model.embed_tokens.weight", None)
    for name, matrix in values.items():
        model.get_parameter(name).data = torch.tensor(matrix)
    if head is not None:
        model.lm_head.weight = torch.nn.Parameter(torch.tensor(head))
    with torch.no_grad():
        return [model(torch.tensor([each.token_ids])).logits[0, each.first_scored - 1 : -1] for each in texts]


def figures(exact: list[Any], found: list[Any], texts: list[ScoredText]) -> dict[str, float]:
    """Perplexity, divergence and agreement by torch's own functions."""
    torch = pytest.importorskip("torch", reason="the oracle")
    p, q = (torch.log_softmax(torch.cat(logits).double(), -1) for logits in (exact, found))
    tokens = torch.tensor(np.concatenate([each.tokens for each in texts]))
    kl = torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(-1)
    return {
        "perplexity": float(torch.nn.functional.nll_loss(q, tokens).exp()),
        "mean_kl": float(kl.mean()),
        "p99_kl": float(kl.quantile(0.99)),
        "agreement": float((p.argmax(-1) == q.argmax(-1)).double().mean()),
    }


def test_levels_have_the_figures_of_their_weights(trained: Path, text: Path) -> None:
    with LoadedPackage(trained, ["target"]) as loaded:
        texts = windows(loaded, text, CONTEXT, 10 * CONTEXT)
    exact, draft = (transformers_logits(values, texts) for values in ({}, dequantized(trained)))
    found = evaluated(trained, text, activations="fp32", kernel="numpy")
    assert (found.num_texts, found.num_tokens) == (10, 150)
    for level, logits in zip(found.levels, (exact, draft), strict=False):
        expected = figures(exact, logits, texts)
        assert expected == pytest.approx({key: getattr(level, key) for key in expected}, rel=2e-3, abs=1e-6)
    if native_names():
        native = evaluated(trained, text, activations="fp32", kernel=native_names()[0])
        assert native.levels[1].mean_kl == pytest.approx(found.levels[1].mean_kl, rel=0.03)
        assert native.kernel == native_names()[0]


def test_a_part_costs_what_its_values_do(trained: Path, text: Path) -> None:
    values = dequantized(trained)
    with LoadedPackage(trained, ["target"], "numpy", activations="fp32") as loaded:
        texts = windows(loaded, text, CONTEXT, 10 * CONTEXT)
        parts = dict(part_decoders(loaded, read_manifest(trained).options.codec))
        layers = {f"model.layers.{number}.{part}" for number in range(6) for part in ("self_attn", "mlp")}
        assert set(parts) == layers | {"lm_head"}
        some = {"model.layers.0.mlp": "model.layers.0.mlp.", "model.layers.5.self_attn": "model.layers.5.self_attn."}
        some |= {"lm_head": "model.embed_tokens."}
        found = measure(loaded.target, {name: parts[name] for name in some}, texts)
    exact = transformers_logits({}, texts)
    for part, prefix in zip(found, some.values(), strict=True):
        changed = {name: matrix for name, matrix in values.items() if name.startswith(prefix)}
        expected = figures(exact, transformers_logits(changed, texts), texts)
        assert expected == pytest.approx({key: getattr(part, key) for key in expected}, rel=2e-3, abs=1e-6)


def test_look_ups_are_left_out_and_levels_can_be_chosen(trained: Path, text: Path) -> None:
    evaluation = evaluated(trained, text)
    codec = read_manifest(trained).options.codec
    assert [level.name for level in evaluation.levels] == ["target", codec, "streaming"]
    assert evaluation.left_out == ["prompt-lookup: a look-up, which has no probability for every token; left out."]
    chosen = evaluated(trained, text, names=["streaming"])
    assert chosen.levels == [evaluation.levels[0], evaluation.levels[2]]
    assert chosen.left_out == []
    with pytest.raises(
        ModelError, match=r"levels absent; names out of .*prompt-lookup are required\. Choose some of them"
    ):
        evaluated(trained, text, names=["absent"])


def test_models_with_another_tokenizer_are_left_out(tmp_path: Path, text: Path) -> None:
    small, other = PYLIB.with_name("pylib-0.2m"), write_renumbered(tmp_path / "other")
    quantize(PYLIB, tmp_path / "p", drafts=(f"checkpoint:{small}", f"checkpoint:{other}"))
    evaluation = evaluated(tmp_path / "p", text)
    assert [level.name for level in evaluation.levels] == ["target", "mxfp4", "pylib-0.2m"]
    assert evaluation.left_out == ["other: it has another tokenizer; left out."]
    with LoadedPackage(tmp_path / "p") as loaded:
        texts = windows(loaded, text, CONTEXT, 10 * CONTEXT)
        draft = loaded.levels[2].decoder
        assert draft is not None
        assert measure(loaded.target, {"pylib-0.2m": draft}, texts) == [evaluation.levels[2]]


def test_windows_follow_one_another_and_the_last_piece_is_none(trained: Path, text: Path) -> None:
    with LoadedPackage(trained, ["target"]) as loaded:
        ids = loaded.tokenizer.encode(text.read_text())
        found = windows(loaded, text, CONTEXT, 10**6)
        assert len(found) == len(ids) // CONTEXT
        prefix = len(loaded.tokenizer.prefix)
        for number, each in enumerate(found):
            assert each.token_ids[prefix:] == ids[number * CONTEXT : (number + 1) * CONTEXT][prefix:]
            assert each.tokens.tolist() == each.token_ids[CONTEXT // 2 + 1 :]
        assert len(windows(loaded, text, CONTEXT, 3 * CONTEXT - 1)) == 2
        short = text.with_name("short.txt")
        short.write_text("short")
        with pytest.raises(
            ModelError, match=r"short.txt: \d+ tokens; a window of 128 is required\. Give a longer file"
        ):
            windows(loaded, short, 128, 10**6)
        most = loaded.config.max_position_embeddings
        with pytest.raises(ModelError, match=rf"--context: {most + 1} tokens; the model has {most} positions"):
            windows(loaded, text, most + 1, 10**6)


def test_answers_are_the_targets_greedy_ones(trained: Path) -> None:
    with LoadedPackage(trained, ["target"]) as loaded:
        found = answers(loaded, ["import os", "def f(self"], 8, 100, lambda *_: None)
        given = [loaded.tokenizer.encode(prompt) for prompt in ("import os", "def f(self")]
        assert [each.token_ids[: each.first_scored] for each in found] == given
        for each in found:
            assert each.logits(loaded.target).argmax(axis=-1).tolist() == each.tokens.tolist()
        assert len(answers(loaded, ["import os", "def f(self"], 8, 3, lambda *_: None)) == 1


def test_parts_are_sorted_by_what_they_cost(trained: Path, text: Path) -> None:
    evaluation = evaluated(trained, text, with_parts=True)
    costs = [part.mean_kl for part in evaluation.parts]
    assert len(costs) == 13
    assert all(first >= second for first, second in pairwise(costs))
    assert costs[-1] > 0 and costs[0] < evaluation.levels[1].mean_kl < sum(costs) * 3


@pytest.mark.parametrize(
    ("model_type", "codec", "experts"), [("gpt_oss", "bsfp", "mlp"), ("granitemoe", "mxfp4", "block_sparse_moe")]
)
def test_stacks_of_experts_are_parts(model_type: str, codec: str, experts: str, kernel: str, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="transformers writes the model")
    from stacked_models import write_random_model

    source = write_random_model(tmp_path / "m", model_type, num_hidden_layers=1, hidden_size=64, head_dim=16)
    write_tiny_tokenizer(source / "tokenizer.json", 96)
    quantize(source, tmp_path / "p", codec=codec)
    with LoadedPackage(tmp_path / "p", ["target"], num_threads=1) as loaded:
        ids = [ScoredText(np.random.default_rng(0).integers(3, 90, 24).tolist(), 12)]
        found = measure(loaded.target, dict(part_decoders(loaded, codec)), ids)
    costs = {part.name.removeprefix("model.layers.0."): part.mean_kl for part in found}
    assert {"self_attn", experts} <= costs.keys() and all(cost is not None and cost > 0 for cost in costs.values())
