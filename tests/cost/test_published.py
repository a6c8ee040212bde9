"""The page's tables are the code's output, and the numbers that the project promised are met."""

import re
from pathlib import Path
from statistics import mean

import pytest
from published import speq_tables
from published.ml_specqd import MXFP4_SPEED, SETUPS, implied_length
from published.mlp_tables import TABLES
from published.model_cards import LLAMA_3_1_8B
from published.spire_figures import critical_context
from published_numbers import sections

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import Question, cost_report
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import TYPICAL_ACCEPTANCE, strategies_of
from mxconv.cost.speedup import acceptance_of
from mxconv.cost.throughput import SPIRE_TARGET

PAGE = Path(__file__).parents[2] / "docs" / "published.md"


def test_the_pages_tables_are_what_the_command_prints() -> None:
    page, found = PAGE.read_text("utf-8"), list(sections())
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == [section.title for section in found]
    for section in found:
        assert section.markdown().removeprefix(f"## {section.title}\n\n") in page


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
    table = (PAGE.parent / "cost.md").read_text("utf-8").split("## Where acceptance comes from")[1]
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
    table = (PAGE.parent / "cost.md").read_text("utf-8").split("|---|---|---|---|---|\n")[1].split("\n\n")[0]
    assert [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()] == expected
