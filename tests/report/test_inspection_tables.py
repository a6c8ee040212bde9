import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from mxconv.report.inspection import Inspection
from mxconv.report.inspection_tables import print_inspection
from mxconv.report.tables import percent, printable

Inspect = Callable[..., Inspection]


def printed(inspection: Inspection, width: int = 140, encoding: str = "utf-8", *, row_histograms: bool = False) -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding)
    print_inspection(inspection, Console(file=file, width=width), row_histograms=row_histograms)
    file.flush()
    return buffer.getvalue().decode(encoding)


def test_the_histogram_names_every_exponent_its_weights_and_the_window(model: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(model)
    text = printed(inspection)
    exponents = inspection.total.exponents
    assert exponents is not None and exponents.window is not None
    low, high = exponents.window
    bars = {line.split()[0]: line for line in text.splitlines() if line.strip()[:1].isdigit() and "━" in line}
    for field in range(low, high + 1):
        assert f"{exponents.nonzero[field]:,}" in bars[str(field)]
    assert " | " in bars[str(high)] and " | " in bars[str(low)]
    assert f"window {low}..{high} (16 exponents" in text
    assert "log scale, up to" in text


def test_the_table_has_a_row_a_group_and_the_figures_of_the_total(tiny_llama: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(tiny_llama, per="layer")
    lines = printed(inspection).splitlines()
    assert any(line.startswith(" layer 0") for line in lines)
    assert any(line.startswith(" outside layers") for line in lines)
    (total,) = (line for line in lines if line.startswith(" total"))
    assert f"{inspection.total.bsfp_draft_sqnr_db:.2f}" in total
    assert f"{inspection.total.mxfp4_sqnr_db:.2f}" in total


@pytest.mark.parametrize("width", [80, 100, 140])
def test_lines_fit_the_terminal(
    width: int, tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    for path in (tiny_llama, package(tiny_llama, codec="mxfp4")):
        table = printed(inspect_path(path, per="kind"), width).split("By kind")[1]
        assert max(len(line) for line in table.splitlines()) <= width
        assert "…" not in table


def test_selected_rows_get_histograms_of_their_own(tiny_llama: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(tiny_llama, per="tensor", tensor_glob="*mlp*")
    text = printed(inspection, row_histograms=True)
    assert text.count("Exponents of model.layers.0.mlp.") == 3
    assert "Exponents of all tensors" in text


def test_a_terminal_without_unicode_gets_ascii(tiny_llama: Path, inspect_path: Inspect) -> None:
    text = printed(inspect_path(tiny_llama), encoding="ascii")
    assert "----" in text


def test_names_cannot_steer_the_terminal(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    text = printed(inspect_path(odd_checkpoint, per="tensor"), width=160)
    assert "\x1b" not in text
    assert "a & $b$ \\x1b[31m.weight" in text
    assert "<script>alert(1)</script>.weight" in text
    assert "note: 1 of 10 tensors are F32 and not counted; quantize needs --dtype" in text
    assert "non-finite weights: quantize needs --on-nonfinite keep" in text


def test_percentages_never_round_to_all_or_nothing() -> None:
    assert [percent(fraction) for fraction in (0, 1e-9, 0.5, 0.99999999, 1)] == [
        "0%",
        "< 0.01%",
        "50.00%",
        "99.99%",
        "100%",
    ]


def test_printable_escapes_controls_and_line_ends() -> None:
    assert printable("a\x1b[2J\nb\u202ec é") == "a\\x1b[2J\\nb\\u202ec é"
