"""The report as plain data, and the surfaces behind pictures and sliders."""

import json

import pytest

from mxconv.arch.fields import Fields
from mxconv.cost.architecture import Architecture
from mxconv.cost.hardware import hardware_names, open_hardware
from mxconv.cost.levels import Workload, pass_seconds, seconds_per_token, strategies_of
from mxconv.cost.published.architectures import LLAMA_3_1_8B, QWEN3_30B_A3B
from mxconv.cost.report import MODELS, Question, cost_report
from mxconv.cost.speedup import LevelCost, accepted_tokens, hierarchy_speedup, round_speedup, speedup
from mxconv.cost.surfaces import LEVIATHAN, draft_surface, throughput_surface, two_draft_surface
from mxconv.cost.throughput import SPIRE_DRAFTS, SPIRE_TARGET, throughput_multiplier

LLAMA = Architecture.from_fields(Fields(LLAMA_3_1_8B, "config.json"))
MIXTURE = Architecture.from_fields(Fields(QWEN3_30B_A3B, "config.json"))


@pytest.mark.parametrize("name", hardware_names())
@pytest.mark.parametrize("architecture", [LLAMA, MIXTURE], ids=["dense", "mixture"])
def test_every_machine_answers_in_plain_finite_json(name: str, architecture: Architecture) -> None:
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
    one = draft_surface(0.3, 1.1)
    assert one.values[45][6] == pytest.approx(round_speedup(0.9, 7, 1 / 0.3, 1.1))
    assert draft_surface(0.3, 1.1, LEVIATHAN).values[45][6] == pytest.approx(speedup(0.9, 7, 0.3, 1.1))
    assert (one.rows[45], one.columns[6]) == (0.9, 7)
    levels = [LevelCost(1.0), LevelCost(0.3, 0.9, 8), LevelCost(0.05, 0.6, 4)]
    two = two_draft_surface((0.3, 0.05), (8, 4))
    assert two.values[45][30] == pytest.approx(hierarchy_speedup(levels, accepted_tokens))
    two = two_draft_surface((0.3, 0.05), (8, 4), LEVIATHAN)
    assert two.values[45][30] == pytest.approx(hierarchy_speedup(levels))
    contexts = [256, 512]
    batched = throughput_surface(SPIRE_TARGET, "SPIRe", contexts, 600)
    draft = SPIRE_DRAFTS["SPIRe"](SPIRE_TARGET)
    assert batched.values[6][1] == throughput_multiplier(SPIRE_TARGET, draft, 64, 512, 4, 600)
    assert (batched.rows[6], batched.columns[1]) == (64, 512)
