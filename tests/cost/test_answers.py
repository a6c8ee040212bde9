"""The report as plain data, the lengths that it chooses, and the surfaces of pictures."""

import json
from dataclasses import replace
from itertools import product

import pytest

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import MODELS, Question, cost_report
from mxconv.cost.hardware import hardware_names, open_hardware
from mxconv.cost.levels import (
    FOUR_BIT,
    LENGTHS,
    Workload,
    fastest_lengths,
    pass_seconds,
    seconds_per_token,
    strategies_of,
    with_acceptance,
)
from mxconv.cost.published.model_cards import LLAMA_3_1_8B, QWEN3_30B_A3B
from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup, round_speedup
from mxconv.cost.surfaces import draft_surface, throughput_surface, two_draft_surface
from mxconv.cost.throughput import SPIRE_DRAFTS, SPIRE_TARGET, throughput_multiplier

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
    contexts = [256, 512]
    batched = throughput_surface(SPIRE_TARGET, "SPIRe", contexts, 600)
    draft = SPIRE_DRAFTS["SPIRe"](SPIRE_TARGET, 64)
    assert batched.values[6][1] == throughput_multiplier(SPIRE_TARGET, draft, 64, 512, 4, 600)
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
