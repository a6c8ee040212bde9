import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from mxconv.report.inspection import Inspection
from mxconv.report.page import render_page, write_page

Inspect = Callable[..., Inspection]


def parse(page: str) -> ElementTree.Element:
    """The page is XML too, so a strict parser proves that every element is closed and every name escaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").strip())


def test_the_page_has_a_row_a_tensor_and_the_totals(
    trained_model: Path, inspect_trained: Callable[[], Inspection], tmp_path: Path
) -> None:
    inspection = inspect_trained()
    write_page(inspection, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    root = parse(page)
    groups, tensors = root.findall(".//tbody")
    assert len(groups) == len(inspection.groups) + 1
    assert [row[0].text for row in tensors] == [tensor.name for tensor in inspection.tensors]
    assert inspection.total.drafts is not None
    figures = {div[0].text: div[1].text for div in root.findall(".//dl/div")}
    assert figures["weights"] == f"{inspection.total.num_weights:,}"
    assert figures["BSFP bits a weight"] == f"{inspection.total.drafts.bsfp_bits_per_weight:.2f}"
    assert figures["MXFP4, dB"] == f"{inspection.total.mxfp4_sqnr_db:.2f}"


def test_the_histogram_is_an_inline_picture_with_its_window(
    trained_model: Path, inspect_trained: Callable[[], Inspection]
) -> None:
    inspection = inspect_trained()
    root = parse(render_page(inspection))
    chart = next(svg for svg in root.iter("svg") if svg.get("class") == "chart")
    exponents = inspection.total.exponents
    assert exponents is not None and exponents.window is not None
    assert len([rect for rect in chart.iter("rect") if rect.get("class") == "shade"]) == 16
    titles = " ".join(title.text or "" for title in chart.iter("title"))
    for field in range(exponents.window[0], exponents.window[1] + 1):
        assert f"exponent {field}, magnitude" in titles
        assert f": {exponents.nonzero[field]:,} (" in titles
    assert all(float(rect.get("height", 0)) >= 0 for rect in chart.iter("rect"))


def test_every_row_is_as_wide_as_its_head(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    for path in (tiny_llama, package(tiny_llama)):
        for table in parse(render_page(inspect_path(path))).iter("table"):
            assert len({len(row) for row in table.iter("tr")}) == 1


def test_the_page_needs_no_network_and_no_scripts(tiny_llama: Path, inspect_path: Inspect) -> None:
    page = render_page(inspect_path(tiny_llama, tensor_glob="*norm*"))
    for word in ("http:", "https:", "//", "<script", "<link", "@import", "url("):
        assert word not in page.lower()
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page


def test_hostile_names_are_escaped(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    for per in ("kind", "tensor"):
        page = render_page(inspect_path(odd_checkpoint, per=per))
        assert "<script" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;.weight" in page
        assert "a &amp; $b$ \\x1b[31m.weight" in page
        assert "\x1b" not in page
        parse(page)


def test_a_checkpoint_without_anything_to_count_still_makes_a_page(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    for glob in ("positions", "zeros*", "empty"):
        page = render_page(inspect_path(odd_checkpoint, tensor_glob=glob))
        assert "No weight to count" in page
        parse(page)
