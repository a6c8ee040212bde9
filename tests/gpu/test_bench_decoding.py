"""Decodes of a tiny model in transformers, in 16 bits, in BSFP, and with the self-draft; and rows from known texts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")
pytest.importorskip("transformers", reason="mxconv[hf] is not installed: transformers is missing")

import torch
from checkpoints import write_tiny_llama
from gpu_weights import DEVICE
from packages import quantize
from transformers import AutoModelForCausalLM

from mxconv.bench.gpu_decode_speed import (
    DRAFTED,
    PLAIN,
    TARGET,
    Decoded,
    GpuDecodeResult,
    RecordedText,
    bench_gpu_decoding,
    bytes_per_pass,
    summarize,
)
from mxconv.errors import ModelError
from mxconv.gpu.gpu_linear import GpuLinear
from mxconv.interop.transformers import load_package
from mxconv.interop.transformers.custom_generate import GenerateRun, GreedyChoice
from mxconv.speculation.statistics import LevelStatistics

SMALL = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2,
         "num_key_value_heads": 1, "head_dim": 16}  # fmt: skip
PROMPTS = ["A dog"]
NUM_TOKENS = 3  # with fewer nothing is proposed


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("decoding") / "source", **SMALL)


@pytest.fixture(scope="module")
def package(source: Path) -> Path:
    quantize(source, source.parent / "bsfp", codec="bsfp")
    return source.parent / "bsfp"


@pytest.fixture(scope="module")
def results(source: Path, package: Path) -> list[GpuDecodeResult]:
    return bench_gpu_decoding(package, str(source), PROMPTS, NUM_TOKENS, DEVICE)


def test_each_strategy_has_a_row_against_16_bits(results: list[GpuDecodeResult]) -> None:
    assert [row.strategy for row in results] == [PLAIN, TARGET, DRAFTED]
    for row in results:
        assert row.num_prompts == len(row.speedup_by_prompt) == 1
        assert 1 <= row.num_tokens <= NUM_TOKENS
        assert min(row.tokens_per_second, row.speedup, row.read_bandwidth, row.fraction_of_bandwidth or 0) > 0
        assert (row.peak_bytes is None) == (DEVICE.type == "cpu")
    plain, target, drafted = results
    assert (plain.speedup, plain.acceptance_rates, target.acceptance_rates) == (1, [], [])
    assert len(drafted.acceptance_rates) == 1
    assert plain.tokens_per_round == target.tokens_per_round == 1 <= drafted.tokens_per_round
    assert plain.num_bytes is not None and target.num_bytes is not None and drafted.num_bytes is not None
    assert plain.identical_to_greedy and plain.identical_to_target and target.identical_to_target
    assert plain.differences == []
    assert target.identical_to_greedy or target.differences
    assert drafted.identical_to_target or drafted.differences


def test_a_pass_reads_every_weight_but_those_of_embeddings(source: Path, package: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    parameters = sum(each.nbytes for each in model.parameters())
    embeddings = model.model.embed_tokens.weight.nbytes
    assert bytes_per_pass(model) == parameters - embeddings
    load_package(model, package, DEVICE)
    layers = [each.weight_on_device for each in model.modules() if isinstance(each, GpuLinear)]
    rest = sum(each.nbytes for each in model.parameters()) - embeddings
    assert bytes_per_pass(model) == rest + sum(each.arrays.num_bytes for each in layers)
    assert bytes_per_pass(model, is_draft=True) == rest + sum(each.draft.num_bytes for each in layers)
    model.experts = torch.nn.Parameter(torch.zeros(2, 3, 4))
    assert bytes_per_pass(model) is None


def test_what_cannot_be_compared_is_refused(source: Path, package: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "mxfp4")
    with pytest.raises(ModelError, match="an mxfp4 package; a BSFP package is required, which is target and draft"):
        bench_gpu_decoding(tmp_path / "mxfp4", None, PROMPTS, 1, DEVICE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty: transformers cannot load it \(.*\); .* Name it with --source"):
        bench_gpu_decoding(package, str(tmp_path / "empty"), PROMPTS, 1, DEVICE)


def test_a_model_without_room_is_refused(source: Path, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxconv.gpu.device.free_bytes", lambda _: 1000)
    with pytest.raises(ModelError, match=r"source: .* GB are free\. It is measured beside the package"):
        bench_gpu_decoding(package, str(source), PROMPTS, 1, DEVICE)


def text(tokens: list[int], seconds: float, run: GenerateRun | None = None, peak: int | None = None) -> RecordedText:
    choices = [GreedyChoice(index, token, token + 1, 0.5) for index, token in enumerate(tokens)]
    return RecordedText(tokens, seconds, 1e9, peak, choices, run)


def drafted_run(rounds: int, forwards: int, proposed: int, accepted: int) -> GenerateRun:
    level = LevelStatistics("draft")
    level.num_forwards, level.num_proposed, level.num_accepted = forwards, proposed, accepted
    return GenerateRun([], 4, rounds, [level])


PLAIN_TEXTS = Decoded("16-bit", [text([1, 2, 3, 4], 4.0), text([5, 6], 1.0)], 1000, 0, 70)
TARGET_TEXTS = Decoded("bsfp", [text([1, 2, 3, 4], 2.0, peak=40), text([5, 7], 1.0, peak=50)], 800, 0, 60)
DRAFTED_TEXTS = Decoded(
    "bsfp + draft",
    [text([1, 2, 3, 4], 1.0, drafted_run(2, 3, 3, 2)), text([5, 7], 1.0, drafted_run(2, 1, 1, 0))],
    800, 200, 60,
)  # fmt: skip


def test_speeds_are_of_tokens_a_second_and_passes_read_their_bytes() -> None:
    row = summarize(DRAFTED_TEXTS, PLAIN_TEXTS, TARGET_TEXTS)
    assert (row.num_tokens, row.tokens_per_second) == (6, 3)
    assert row.speedup_by_prompt == [4, 1]
    assert row.speedup == pytest.approx(2)
    assert row.tokens_per_round == 6 / 4
    assert row.acceptance_rates == [0.5]
    assert row.num_bytes == 4 * 800 + 4 * 200
    assert row.fraction_of_bandwidth == pytest.approx((2 * 800 + 3 * 200 + 2 * 800 + 200) / 2 / 1e9)
    assert row.read_bandwidth == 1


def test_drafts_are_compared_with_the_target_and_the_target_with_16_bits() -> None:
    plain = summarize(PLAIN_TEXTS, PLAIN_TEXTS, PLAIN_TEXTS)
    target, drafted = (summarize(each, PLAIN_TEXTS, TARGET_TEXTS) for each in (TARGET_TEXTS, DRAFTED_TEXTS))
    assert plain.identical_to_greedy and plain.differences == []
    assert not target.identical_to_greedy and target.identical_to_target
    (difference,) = target.differences
    assert (difference.prompt, difference.compared_with, difference.index) == (1, "16-bit", 1)
    assert (difference.token, difference.runner_up, difference.other_token, difference.other_runner_up) == (7, 8, 6, 7)
    assert not drafted.identical_to_greedy and drafted.identical_to_target and drafted.differences == []


@pytest.mark.parametrize(("change", "none"), [({"target_bytes": None}, True), ({}, False)])
def test_what_nobody_counted_is_none(change: dict[str, Any], none: bool) -> None:
    row = summarize(replace(TARGET_TEXTS, **change), PLAIN_TEXTS, TARGET_TEXTS)
    assert (row.num_bytes is None) == (row.fraction_of_bandwidth is None) == none
    assert (row.peak_bytes, row.loading_peak_bytes) == (50, 60)
    assert summarize(PLAIN_TEXTS, PLAIN_TEXTS, PLAIN_TEXTS).peak_bytes is None
