"""The report as plain data, the lengths that it chooses, and the surfaces of pictures."""

import json
from dataclasses import replace
from itertools import product

import pytest
from published.model_cards import LLAMA_3_1_8B, QWEN3_30B_A3B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import MODELS, Question, cost_report
from mxconv.cost.counts import BITS
from mxconv.cost.hardware import hardware_names, open_hardware
from mxconv.cost.levels import (
    FOUR_BIT,
    LENGTHS,
    CostLevel,
    Workload,
    fastest_lengths,
    pass_seconds,
    seconds_per_token,
    strategies_of,
    with_acceptance,
)
from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup, round_speedup
from mxconv.cost.surfaces import draft_surface, throughput_surface, two_draft_surface
from mxconv.cost.throughput import SPIRE_DRAFTS, SPIRE_TARGET, throughput_multiplier
from mxconv.errors import MxconvError

LLAMA = ModelSizes.from_fields(Fields(LLAMA_3_1_8B, "config.json"))
MIXTURE = ModelSizes.from_fields(Fields(QWEN3_30B_A3B, "config.json"))


@pytest.mark.parametrize("name", hardware_names())
@pytest.mark.parametrize("architecture", [LLAMA, MIXTURE], ids=["dense", "mixture"])
def test_every_machine_answers_in_plain_finite_json(name: str, architecture: ModelSizes) -> None:
    hardware = open_hardware(name)
    report = cost_report(Question(architecture, strategies_of(architecture), hardware, sweep=True))
    assert json.loads(json.dumps(report, allow_nan=False))["hardware"]["name"] == name
    expected = [model for model in MODELS if model != "accelerator" or hardware.accelerator]
    assert [entry["model"] for entry in report["models"]] == expected


def test_the_speed_up_of_a_hierarchy_is_its_seconds_over_plain_decoding() -> None:
    hardware = open_hardware("h100-sxm")
    strategies = strategies_of(LLAMA)
    report = cost_report(Question(LLAMA, strategies, hardware, num_draft_tokens=[6, 2], models=["speedup"]))
    outputs = report["models"][0]["outputs"]
    for name in ("bf16 <- mxfp4", "bsfp <- bsfp draft <- small model"):
        levels = strategies[name]
        lengths = [6, 2][: len(levels) - 1]
        plain = pass_seconds(hardware, levels[0], Workload())
        assert outputs[name]["num_draft_tokens"] == lengths
        expected = plain / seconds_per_token(hardware, levels, lengths, Workload())
        assert outputs[name]["speedup"] == pytest.approx(expected)


def test_surfaces_hold_the_equations_at_every_point() -> None:
    one = draft_surface(0.3)
    assert one.values[45][6] == pytest.approx(round_speedup(0.9, 7, 1 / 0.3))
    assert (one.rows[45], one.columns[6]) == (0.9, 7)
    levels = [LevelCost(1.0), LevelCost(0.3, 0.9, 8), LevelCost(0.05, 0.6, 4)]
    two = two_draft_surface((0.3, 0.05), (8, 4))
    assert two.values[45][30] == pytest.approx(hierarchy_speedup(levels, accepted_tokens))
    contexts = [256, 512, 4096]
    batched = throughput_surface(SPIRE_TARGET, "SPIRe", contexts, 600)
    draft = SPIRE_DRAFTS["SPIRe"](SPIRE_TARGET, 64)
    assert batched.values[6][2] == throughput_multiplier(SPIRE_TARGET, draft, 64, 4096, 4, 600)
    wide = throughput_surface(SPIRE_TARGET, "SPIRe", contexts, 600, 512)
    assert wide.values[6][1] < batched.values[6][1] and wide.values[6][2] < batched.values[6][2]
    assert (batched.rows[6], batched.columns[1]) == (64, 512)


def test_lengths_that_are_not_given_are_the_fastest() -> None:
    hardware, workload = open_hardware("core-ultra-9-285k"), Workload()
    levels = strategies_of(LLAMA)["bf16 <- mxfp4 <- small model"]
    found = fastest_lengths(hardware, levels, workload)
    seconds = {
        lengths: seconds_per_token(hardware, levels, lengths, workload) for lengths in product(LENGTHS, repeat=2)
    }
    assert seconds_per_token(hardware, levels, found, workload) == min(seconds.values())
    assert fastest_lengths(hardware, levels[:1], workload) == []


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("codec", [codec for codec in BITS if codec not in ("bf16", "fp16", "bsfp", "bsfp-draft")])
def test_an_accelerator_is_asked_about_no_draft_that_it_cannot_run(codec: str, batch: int) -> None:
    """SPEQ's elements take whole 16-bit weights and BSFP's powers of two; however often others are accepted."""
    speq, workload = open_hardware("speq-28nm"), Workload(batch)
    target, small = CostLevel("target", "bf16", LLAMA), CostLevel("small", "bf16", LLAMA, 0.1, "a test")
    draft = CostLevel("draft", codec, LLAMA, 1.0, "a test")
    look_up = CostLevel("look-up", codec, None, 0.5, "a test")
    strategies = {"plain": [target], "draft": [target, draft], "both": [target, small, draft], "small": [target, small]}
    strategies["look-up"] = [target, look_up]  # which multiplies nothing
    speedup, _, accelerator, roofline = cost_report(Question(LLAMA, strategies, speq, workload, sweep=True))["models"]
    assert list(speedup["outputs"]) == ["plain", "small", "look-up"] and speedup["not_run"] == ["draft", "both"]
    assert accelerator["outputs"] == {} and accelerator["note"].startswith("no BSFP draft among the levels")
    assert list(roofline["outputs"]) == ["target (bf16)", "small (bf16)"]
    with pytest.raises(MxconvError, match=rf"^hardware speq-28nm: level 'draft' has weights in {codec}; one of bf16, "):
        pass_seconds(speq, draft, workload)
    anywhere = cost_report(Question(LLAMA, strategies, open_hardware("h100-sxm"), workload))["models"][0]
    assert list(anywhere["outputs"]) == list(strategies) and anywhere["not_run"] == []


def test_where_no_draft_pays_plain_decoding_is_the_fastest() -> None:
    cpu = open_hardware("core-ultra-9-285k")
    levels = with_acceptance(strategies_of(LLAMA)["bf16 <- mxfp4"], dict.fromkeys(FOUR_BIT, 0.05), "a test")
    strategies = {"bf16": levels[:1], "bf16 <- mxfp4": levels}
    outputs = cost_report(Question(LLAMA, strategies, cpu, models=["speedup"]))["models"][0]["outputs"]
    assert outputs["bf16"]["speedup_over_baseline"] == 1
    assert outputs["bf16 <- mxfp4"]["speedup_over_baseline"] < 1
    assert 0.05 < outputs["bf16 <- mxfp4"]["break_even_acceptance"] < 1
    slow = replace(cpu, peaks={"fp32": 10.0})  # arithmetic is the limit
    outputs = cost_report(Question(LLAMA, strategies, slow, models=["speedup"]))["models"][0]["outputs"]
    assert outputs["bf16 <- mxfp4"]["break_even_acceptance"] is None
