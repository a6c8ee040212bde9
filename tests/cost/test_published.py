"""The page's tables are the code's output, and the numbers that the project promised are met."""

from pathlib import Path
from statistics import median

import pytest

from mxconv.cost.published import speq
from mxconv.cost.published.mlp_speculator import TABLES, fitted, step_of
from mxconv.cost.published.row import Row, Section
from mxconv.cost.published.sections import markdown, sections

PAGE = Path(__file__).parents[2] / "docs" / "published.md"


@pytest.fixture(scope="module")
def found() -> dict[str, Section]:
    return {section.title: section for section in sections()}


def test_the_pages_tables_are_what_the_command_prints() -> None:
    assert PAGE.read_text("utf-8").endswith(f"\n\n{markdown()}")


def test_every_table_of_the_papers_is_there_and_no_cell_is_left_out(found: dict[str, Section]) -> None:
    rows = {title: len(section.rows) for title, section in found.items()}
    assert rows["SPEQ: Table II"] == 2 * 15 + 5 + 1
    assert rows["SPEQ: Table III from Table II, Eqs. (1)-(2)"] == 15 + 5 + 1
    assert rows["SPEQ: Table IV, milliwatts and square millimetres"] == 3 * (5 + 1)
    assert rows["MLP speculators: Table 1, Llama2-7B"] == 2 * 3 * 7
    assert rows["MLP speculators: Table 2, Codellama-13B-instruct"] == 2 * 3 * 6


def test_a_row_without_ours_is_copied_and_no_other(found: dict[str, Section]) -> None:
    for section in found.values():
        for row in section.rows:
            assert (row.ours is None) == (row.kind == "copied"), row.what


def test_spires_numbers_are_met_within_half_a_percent(found: dict[str, Section]) -> None:
    errors = found["SPIRe: Figs. 4 and 6, appendix, Cost Analysis"].errors
    assert len(errors) == 14 and max(errors) < 0.005


def test_speqs_table_3_is_met_within_one_percent_on_average_and_one_and_a_half_at_worst(
    found: dict[str, Section],
) -> None:
    errors = found["SPEQ: Table III from Table II, Eqs. (1)-(2)"].errors
    assert sum(errors) / len(errors) <= 0.01 and max(errors) <= 0.015


def test_an_entrys_ratio_gives_its_published_speed_up() -> None:
    for entry in speq.ENTRIES:
        assert entry.tokens / (entry.length * entry.draft_ratio + 1) == pytest.approx(entry.speedup)


def test_the_tables_own_efficiency_is_above_the_speed_up_since_drafting_draws_less() -> None:
    for entry in speq.ENTRIES:
        assert entry.speedup < speq.table_efficiency(entry) < entry.speedup * speq.FULL_MILLIWATTS / 508


def test_steps_over_candidates_are_the_plain_step_where_there_is_none_and_grow_with_them() -> None:
    for table in TABLES:
        step = step_of(table)
        assert step.seconds(2, 0, 64, 0.01) == 0.01
        seconds = [step.seconds(2, k, 64, 0.01) for k in table.candidates]
        assert seconds == sorted(seconds)
        assert step.num_rows(4, 32) == 4 * 32 * (table.num_heads + 1)
        assert 0.4 < step.share < 1


def test_a_fit_to_all_cells_is_nearer_than_the_derived_ones(found: dict[str, Section]) -> None:
    for table in TABLES:
        assert median(fitted(table, step_of(table))[0]) < median(found[f"MLP speculators: {table.name}"].errors)


def test_a_table_states_the_errors_of_derived_rows_alone() -> None:
    rows = [
        Row("a", 2.0, 2.2),
        Row("b", 1.0, 1.3),
        Row("c", 1.0, 9.0, kind="fitted"),
        Row("d", 1.0, None, kind="copied"),
    ]
    assert "2 derived rows: mean error 20.0%, median 20.0%, worst 30.0%." in Section("t", rows).markdown()
