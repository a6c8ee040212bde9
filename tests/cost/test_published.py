"""The page's tables are the code's output, the numbers that the project promised are met; SPEQ's processing element.

The element is compared with the BSFP codec and float arithmetic, bit for bit.
"""

import re
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from published import speq_tables
from published.claim import table
from published.ml_specqd import MXFP4_SPEED, SETUPS, implied_length
from published.mlp_tables import TABLES
from published.model_cards import LLAMA_3_1_8B
from published.processing_element import full_dot, quantize_dots
from published.spire_figures import critical_context
from published_numbers import PAPERS

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.arrays import U16
from mxconv.codecs.bsfp.speq import encode_layout, paper_table
from mxconv.codecs.float16 import FP16
from mxconv.cost.answers import Question, cost_report
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import TYPICAL_ACCEPTANCE, strategies_of
from mxconv.cost.speedup import acceptance_of
from mxconv.cost.throughput import SPIRE_TARGET
from mxconv.errors import CodecError

PAGE = Path(__file__).parents[2] / "docs" / "research" / "published.md"


def test_the_pages_tables_are_what_the_command_prints() -> None:
    page = PAGE.read_text("utf-8")
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == list(PAPERS)
    for title, paper in PAPERS.items():
        assert table(title, paper.claims()).removeprefix(f"## {title}\n\n") in page


def test_verification_turns_from_arithmetic_to_memory_at_the_critical_context() -> None:
    batch, rows, intensity = 10**9, 4, 590.0
    longest = critical_context(SPIRE_TARGET, rows, intensity)
    flops = 2 * SPIRE_TARGET.num_parameters * rows * batch
    for factor in (0.99, 1.01):
        kv = batch * factor * longest * SPIRE_TARGET.kv_bytes_per_position
        assert (flops > (SPIRE_TARGET.num_parameters + kv) * intensity) == (factor < 1)


def test_typical_acceptances_follow_from_the_published_numbers() -> None:
    shares = [
        (setup.mxfp4_share, implied_length(setup.mxfp4_share, MXFP4_SPEED, setup.published[1])) for setup in SETUPS
    ]
    drafts = {
        "bsfp-draft": mean(entry.acceptance for entry in speq_tables.ENTRIES),
        "mxfp4": mean(acceptance_of(share * length, length) for share, length in shares),
        "mtp": mean((0.85, 0.90)),
        "spire": acceptance_of(3.401 - 1, 4),
        "speculator": acceptance_of(TABLES[0].tokens[64][1] - 1, 3),
        "small": acceptance_of(2.647 - 1, 4),
    }
    assert drafts == {key: pytest.approx(value, abs=0.005) for key, (value, _) in TYPICAL_ACCEPTANCE.items()}


def test_the_cost_page_names_every_typical_acceptance() -> None:
    table = (PAGE.parents[1] / "cost.md").read_text("utf-8").split("## Where acceptance comes from")[1]
    rows = re.findall(r"^\| `([a-z0-9-]+)`[^|]*\| ([0-9.]+) \|", table.split("\n## ")[0], re.MULTILINE)
    assert {name: float(value) for name, value in rows} == {
        key: value for key, (value, _) in TYPICAL_ACCEPTANCE.items()
    }


def test_the_first_table_of_the_cost_page_is_the_speed_up_of_llama_3_1_8b_on_an_h100() -> None:
    architecture = ModelSizes.from_fields(Fields(LLAMA_3_1_8B, "Llama 3.1 8B"))
    question = Question(architecture, strategies_of(architecture), open_hardware("h100-sxm"), models=["speedup"])
    outputs = cost_report(question)["models"][0]["outputs"]
    expected = [
        [
            name,
            ", ".join(f"{value:g}" for value in row["acceptance"]) or "-",
            f"{row['tokens_per_second']:.0f}",
            f"{row['speedup_over_baseline']:.2f}",
            "-" if row["break_even_acceptance"] is None else f"{row['break_even_acceptance']:.2f}",
        ]
        for name, row in sorted(outputs.items(), key=lambda item: -item[1]["tokens_per_second"])
    ]
    table = (PAGE.parents[1] / "cost.md").read_text("utf-8").split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()] == expected


PATTERNS = np.arange(1 << 16, dtype=np.uint16)
WEIGHTS = PATTERNS[(PATTERNS >> 10 & 0x1F) < 16]  # SPEQ's window: all FP16 patterns below 2.0
FINITE = PATTERNS[(PATTERNS >> 10 & 0x1F) < 31]


def in_order(activations: U16, weights: np.ndarray) -> np.float32:
    """FP32 sums of products, one after another; a product of FP16 values is exact in FP32."""
    total = np.float32(0)
    for activation, weight in zip(activations.view(np.float16), weights, strict=True):
        total = np.float32(total + np.float32(activation) * np.float32(weight))
    return total


@pytest.mark.parametrize("length", [1, 2, 3, 400])
def test_full_mode_sums_as_float_arithmetic_does(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(12):
        weights, activations = rng.choice(WEIGHTS, length), rng.choice(FINITE, length)
        wq, wr = encode_layout(weights, FP16)
        assert full_dot(activations, wq, wr) == (in_order(activations, weights.view(np.float16)), length)


@pytest.mark.parametrize("length", [1, 2, 128])
def test_quantize_mode_takes_an_activation_and_three_weight_groups_a_cycle(length: int) -> None:
    rng = np.random.default_rng(length)
    for _ in range(6):
        weights, activations = rng.choice(WEIGHTS, (3, length)), rng.choice(FINITE, length)
        wq = np.stack([encode_layout(group, FP16)[0] for group in weights])
        sums, cycles = quantize_dots(activations, wq)
        levels = paper_table(FP16).signed_levels
        assert sums == [in_order(activations, levels[group]) for group in wq]
        assert cycles == length  # three times as many weights as full mode multiplies in them


def test_an_infinite_activation_and_another_number_of_groups_are_errors() -> None:
    wq, wr = encode_layout(WEIGHTS[:1], FP16)
    with pytest.raises(CodecError, match=r"^activation: an infinity or NaN; finite FP16 values are required\."):
        full_dot(np.array([0x7C00], np.uint16), wq, wr)
    with pytest.raises(CodecError, match="infinity or NaN"):
        quantize_dots(np.array([0x7E00], np.uint16), np.repeat(wq[None], 3, axis=0))
    with pytest.raises(CodecError, match=r"^weights: shape \(2, 1\); \(3, 1\) is required"):
        quantize_dots(np.zeros(1, np.uint16), np.zeros((2, 1), np.uint8))
