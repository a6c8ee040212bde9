"""The page's tables are the code's output, and the numbers that the project promised are met."""

import re
from pathlib import Path
from statistics import mean

import pytest

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import Question, cost_report
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import TYPICAL_ACCEPTANCE, strategies_of
from mxconv.cost.published import speq_tables
from mxconv.cost.published.__main__ import sections
from mxconv.cost.published.claim import Claim, Section
from mxconv.cost.published.ml_specqd import MXFP4_SPEED, SETUPS, implied_length
from mxconv.cost.published.mlp_tables import TABLES
from mxconv.cost.published.model_cards import LLAMA_3_1_8B
from mxconv.cost.speedup import acceptance_of
from mxconv.cost.throughput import SPIRE_TARGET, critical_context

PAGE = Path(__file__).parents[2] / "docs" / "published.md"


@pytest.fixture(scope="module")
def found() -> dict[str, Section]:
    return {section.title: section for section in sections()}


def test_the_pages_tables_are_what_the_command_prints(found: dict[str, Section]) -> None:
    page = PAGE.read_text("utf-8")
    assert re.findall(r"^## (.*)", page, re.MULTILINE) == list(found)
    for title, section in found.items():
        assert section.markdown().removeprefix(f"## {title}\n\n") in page


def test_every_table_of_the_papers_is_there_and_no_cell_is_left_out(found: dict[str, Section]) -> None:
    rows = {title: len(section.rows) for title, section in found.items()}
    assert rows["SPEQ: Table II"] == 2 * 15 + 5 + 1
    assert rows["SPEQ: Table III from Table II, Eqs. (1)-(2)"] == 15 + 5 + 2 + 2  # two means; Swift and Medusa
    assert rows["SPEQ: Table IV, area and power"] == 3 * (5 + 2) + 2  # the machine's power in each mode
    assert rows["MLP speculators: Table 1, Llama2-7B"] == 2 * 3 * 7
    assert rows["MLP speculators: Table 2, Codellama-13B-instruct"] == 2 * 3 * 6


def test_a_row_without_ours_is_copied_and_no_other(found: dict[str, Section]) -> None:
    for section in found.values():
        for row in section.rows:
            assert (row.ours is None) == (row.kind == "copied"), row.what


def test_spires_numbers_are_met_by_its_text_for_67_m_and_by_an_assumption_for_70_b(found: dict[str, Section]) -> None:
    section = found["SPIRe: Figs. 3, 4 and 6, Cost Analysis"]
    assert len(section.errors("assumed")) == 7 and max(section.errors("assumed")) < 0.005
    as_written = [row for row in section.rows if "as in the text" in row.what]
    assert [round(row.ours or 0, 2) for row in as_written] == [2.85, 3.12]
    with_equations_rows = [row for row in section.rows if "k + 1 rows" in row.what]
    assert [row.ours for row in with_equations_rows] == [64, 4096]  # 32 and 4,096 are printed
    left_out = [*as_written, *with_equations_rows]
    exact = [abs(row.error or 0) for row in section.rows if row not in left_out and "*over*" not in row.what]
    assert max(exact) < 0.005


def test_constants_read_back_are_no_derivation_and_numbers_outside_a_range_say_so(found: dict[str, Section]) -> None:
    facts = found["SPEQ: section IV and Fig. 2(a)"]
    assert sum(row.kind == "read back" for row in facts.rows) == 5
    assert mean(facts.errors()) == pytest.approx(0.027, abs=0.0005) and max(facts.errors("read back")) == 0
    readings = found["ML-SpecQD: Figs. 2 and 3, and what the text reads from them"].rows
    assert [": outside " in row.what for row in readings] == [True, False, False, True, True]


def test_our_chip_draws_more_than_table_4_prints_and_its_buffers_are_why(found: dict[str, Section]) -> None:
    draft, plain = [row for row in found["SPEQ: Table IV, area and power"].rows if row.kind == "assumed"]
    assert (draft.published, plain.published) == (508, 559)
    assert draft.ours == pytest.approx(1627, abs=1) and plain.ours == pytest.approx(2040, abs=1)
    assert "1,514 of ours are the buffers'" in draft.what and "1,957 of ours are the buffers'" in plain.what


def test_verification_turns_from_arithmetic_to_memory_at_the_critical_context() -> None:
    batch, rows, intensity = 10**9, 4, 590.0
    longest = critical_context(SPIRE_TARGET, rows, intensity)
    flops = 2 * SPIRE_TARGET.num_parameters * rows * batch
    for factor in (0.99, 1.01):
        kv = batch * factor * longest * SPIRE_TARGET.kv_bytes_per_position
        assert (flops > (SPIRE_TARGET.num_parameters + kv) * intensity) == (factor < 1)


def test_numbers_that_the_text_reads_from_its_tables_are_there(found: dict[str, Section]) -> None:
    published = {row.what: row.published for section in found.values() for row in section.rows}
    assert published["over Swift, Vicuna-7b on MT-bench, section V-D"] == 1.52
    assert published["over Medusa, Vicuna-7b on MT-bench, section V-D"] == 1.05
    assert published["Llama2-7B, tokens/s without drafts, b = 1, prompt 64"] == 94.9
    assert published["Codellama-13B-instruct, tokens/s at b = 2, k = 2, prompt 64"] == 181.5
    assert 32 in [number for what, number in published.items() if what.startswith("critical context, 67 M")]
    readings = found["MLP speculators: what the text reads from the tables"]
    assert max(readings.errors()) < 0.05


def test_speqs_table_3_is_met_within_one_percent_on_average_and_one_and_a_half_at_worst(
    found: dict[str, Section],
) -> None:
    errors = found["SPEQ: Table III from Table II, Eqs. (1)-(2)"].errors()
    assert sum(errors) / len(errors) <= 0.01 and max(errors) <= 0.015


def test_an_entrys_ratio_gives_its_published_speed_up() -> None:
    for entry in speq_tables.ENTRIES:
        assert entry.tokens / (entry.length * entry.draft_ratio + 1) == pytest.approx(entry.speedup)


def test_the_tables_own_efficiency_is_above_the_speed_up_since_drafting_draws_less() -> None:
    for entry in speq_tables.ENTRIES:
        assert entry.speedup < speq_tables.table_efficiency(entry) < entry.speedup * speq_tables.FULL_MILLIWATTS / 508


def test_steps_over_candidates_are_the_plain_step_where_there_is_none_and_grow_with_them() -> None:
    for table in TABLES:
        assert table.seconds(2, 0, 64, 0.01) == 0.01
        seconds = [table.seconds(2, k, 64, 0.01) for k in table.candidates]
        assert seconds == sorted(seconds)
        assert table.num_rows(4, 32) == 4 * 32 * (table.num_heads + 1)
        assert 0.4 < table.share < 1


def test_a_table_states_the_errors_of_each_kind_that_tests_something() -> None:
    rows = [
        Claim("a", 2.0, 2.2),
        Claim("b", 1.0, 1.3),
        Claim("c", 1.0, 9.0, kind="fitted"),
        Claim("d", 1.0, None, kind="copied"),
        Claim("e", 1.0, 1.5, kind="assumed"),
        Claim("f", 1.0, 1.1, kind="assumed"),
    ]
    assert "2 assumed rows: mean error 30.0%, median 30.0%, worst 50.0%." in Section("t", rows).markdown()
    assert "2 derived rows: mean error 20.0%, median 20.0%, worst 30.0%." in Section("t", rows).markdown()


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
