"""The page's table is the code's output, and the numbers that the project promised are met."""

from pathlib import Path

from mxconv.cost.published import markdown, published_rows

PAGE = Path(__file__).parents[2] / "docs" / "cost.md"


def test_the_pages_table_is_what_the_command_prints() -> None:
    assert f"\n\n{markdown()}\n" in PAGE.read_text("utf-8")


def test_spires_numbers_are_met_within_half_a_percent() -> None:
    rows = [row for row in published_rows() if row.source.startswith("SPIRe")]
    assert len(rows) == 14
    assert all(abs(row.error) < 0.005 for row in rows)


def test_speqs_ratio_is_met_within_half_a_percent_and_its_mean_within_two() -> None:
    ratio, speedup = (row for row in published_rows() if row.source in ("SPEQ, Tables II and III", "SPEQ, abstract")
                      and not row.is_fitted)  # fmt: skip
    assert abs(ratio.error) < 0.005
    assert abs(speedup.error) < 0.02
