import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from mxconv.report.inspection import Inspection
from mxconv.report.page import render_page, write_page

Inspect = Callable[..., Inspection]


def parse(page: str) -> ElementTree.Element:
    """The page is XML too, so a strict parser proves that every element is closed and every name escaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").strip())


def name_of(row: ElementTree.Element) -> str:
    """Of a table's row; a long one may be broken after points and underscores."""
    span = row[0].find("span")
    return "" if span is None else "".join(span.itertext())


def columns_of(page: str) -> dict[str, list[str | None]]:
    """The texts of the tensors' table by head, without names and pictures."""
    table = parse(page).findall(".//table")[-1]
    heads = [" ".join((head.text or "").split()) for head in table.findall("./thead/tr/th")]
    columns = zip(*(row[1:-1] for row in table.findall("./tbody/tr")), strict=True)
    return {head: [cell.text for cell in column] for head, column in zip(heads[1:-1], columns, strict=True)}


def test_the_page_has_a_row_a_tensor_and_the_totals(
    trained_model: Path, inspect_trained: Callable[[], Inspection], tmp_path: Path
) -> None:
    inspection = inspect_trained()
    write_page(inspection, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    root = parse(page)
    groups, tensors = root.findall(".//tbody")
    assert len(groups) == len(inspection.groups) + 1
    assert [name_of(row) for row in tensors] == [tensor.name for tensor in inspection.tensors]
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
        assert "&lt;script&gt;alert(1)&lt;/script&gt;." in page
        assert "a &amp; $b$ \\x1b[31m." in page
        assert "\x1b" not in page
        names = [name_of(row) for row in parse(page).findall(".//tbody")[-1]]
        assert names[:2] == ["<script>alert(1)</script>.weight", "a & $b$ \\x1b[31m.weight"]


def test_a_checkpoint_without_anything_to_count_still_makes_a_page(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    for glob in ("positions", "zeros*", "empty"):
        page = render_page(inspect_path(odd_checkpoint, tensor_glob=glob))
        assert "No weight to count" in page
        parse(page)


COUNTED = ["weights", "max |w|", "window", "outside"]


def test_of_a_bsfp_package_no_two_columns_say_the_same(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    page = render_page(inspect_path(package(tiny_llama, codec="bsfp")))
    columns = columns_of(page)
    assert list(columns) == [*COUNTED, "BSFP bits, stored", "BSFP dB, stored", "paper dB", "MXFP4 dB"]
    assert len({tuple(column) for column in columns.values()}) == len(columns)
    figures = {div[0].text for div in parse(page).findall(".//dl/div")}
    assert {"BSFP bits a weight, stored", "BSFP draft, dB, stored"} <= figures
    assert not {"stored bits a weight", "stored draft, dB"} & figures


def test_what_is_stored_otherwise_than_bsfp_would_be_has_columns_of_its_own(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    inspection = inspect_path(package(tiny_llama, codec="bsfp", segments="paper"))
    columns = columns_of(render_page(inspection))
    assert list(columns) == [*COUNTED, "stored bits", "BSFP bits", "BSFP dB", "paper dB, stored", "MXFP4 dB"]
    for row, stored, fitted in zip(inspection.tensors, columns["stored bits"], columns["BSFP bits"], strict=True):
        if row.stored is not None and row.drafts is not None:
            assert stored == f"{row.drafts.bsfp_paper_bits_per_weight:.2f}" != fitted
    columns = columns_of(render_page(inspect_path(package(tiny_llama, "nearest", scale_rule="mse"))))
    assert list(columns)[4:] == ["stored bits", "stored draft dB", "BSFP bits", "BSFP dB", "paper dB", "MXFP4 dB"]
    columns = columns_of(render_page(inspect_path(package(tiny_llama, "ocp", lm_head="quantize"))))
    assert list(columns)[4:] == ["stored bits", "BSFP bits", "BSFP dB", "paper dB", "MXFP4 dB, stored"]


def test_a_matrix_that_is_kept_has_its_figures_in_brackets(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    inspection = inspect_path(package(tiny_llama, codec="bsfp", skip=("*k_proj*",)))
    page = render_page(inspection)
    bits = columns_of(page)["BSFP bits, stored"]
    for row, text in zip(inspection.tensors, bits, strict=True):
        if row.drafts is None:
            assert text == "-"
        else:
            figure = f"{row.drafts.bsfp_bits_per_weight:.2f}"
            assert text == (f"({figure})" if row.stored is None else figure)
    assert sum((text or "").startswith("(") for text in bits) == 2  # the keys' matrix and the embeddings
    assert "In brackets: what a tensor that is kept in 16 bits would have." in page


def test_where_nothing_is_stored_in_four_bits_there_is_no_word_of_it(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    folder = package(tiny_llama, codec="bsfp")
    for inspection in (inspect_path(folder, tensor_glob="*embed*"), inspect_path(tiny_llama)):
        columns = columns_of(render_page(inspection))
        assert list(columns) == [*COUNTED, "BSFP bits", "BSFP dB", "paper dB", "MXFP4 dB"]


def test_a_tensor_says_below_its_name_what_it_is_and_why(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    page = render_page(inspect_path(package(tiny_llama, codec="bsfp")))
    groups, tensors = parse(page).findall(".//tbody")
    about = {name_of(row): row[0].findtext("small") for row in tensors}
    assert about["model.layers.0.mlp.up_proj.weight"] == "BF16 172 × 64, bsfp; matrix"
    assert about["model.norm.weight"] == "BF16 64, keep; not a matrix"
    assert all(row[0].find("small") is None for row in groups)
