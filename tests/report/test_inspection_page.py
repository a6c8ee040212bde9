import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from mxconv.errors import MxconvError
from mxconv.report.inspection import Inspection
from mxconv.report.inspection_page import render_inspection_page as render_page
from mxconv.report.inspection_page import write_inspection_picture
from mxconv.report.picture import BLUE, GREEN, ORANGE

Inspect = Callable[..., Inspection]


def parse(page: str) -> ElementTree.Element:
    """The page is XML too, so a strict parser proves that every element is closed and every name escaped."""
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>").strip())


def name_of(row: ElementTree.Element) -> str:
    return (row[0].text or "").partition("\n")[0]


def columns_of(page: str) -> dict[str, list[str | None]]:
    """The texts of the tensors' table by heading, without names; rows of all tables are as wide as their heads."""
    *_, table = tables = parse(page).findall(".//table")
    assert all(len({len(row) for row in each.iter("tr")}) == 1 for each in tables)
    heads = [" ".join((head.text or "").split()) for head in table.findall("./thead/tr/th")]
    columns = zip(*(row[1:] for row in table.findall("./tbody/tr")), strict=True)
    return {head: [cell.text for cell in column] for head, column in zip(heads[1:], columns, strict=True)}


def test_the_page_has_a_row_a_tensor_the_totals_and_a_picture(tiny_llama: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(tiny_llama)
    page = render_page(inspection)
    for word in ("http:", "https:", "<script", "<link", "@import", "url("):  # it needs no network and no scripts
        assert word not in page.lower()
    assert "prefers-color-scheme: dark" in page and 'name="viewport"' in page
    root = parse(page)
    groups, tensors = root.findall(".//tbody")
    assert len(groups) == len(inspection.groups) + 1
    assert [name_of(row) for row in tensors] == [tensor.name for tensor in inspection.tensors]
    assert inspection.total.drafts is not None
    cells = [cell.text for cell in groups[-1]]
    assert f"{inspection.total.drafts.bsfp_bits_per_weight:.2f}" in cells
    assert f"{inspection.total.mxfp4_sqnr_db:.2f}" in cells
    figures = {div[0].text: div[1].text for div in root.findall(".//dl/div")}
    assert figures["weights"] == f"{inspection.total.num_weights:,}"
    (picture,) = root.iter("img")
    assert picture.get("src", "").startswith("data:image/svg+xml;base64,")


def test_hostile_names_are_escaped(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    for per in ("kind", "tensor"):
        page = render_page(inspect_path(odd_checkpoint, per=per))
        assert "<script" not in page
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert "a &amp; $b$ \\x1b[31m" in page
        assert "\x1b" not in page
        names = [name_of(row) for row in parse(page).findall(".//tbody")[-1]]
        assert names[:2] == ["<script>alert(1)</script>.weight", "a & $b$ \\x1b[31m.weight"]


def test_a_checkpoint_without_anything_to_count_still_makes_a_page(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    for glob in ("positions", "zeros*"):
        page = render_page(inspect_path(odd_checkpoint, tensor_glob=glob))
        assert "No weight to count" in page
        parse(page)


def test_a_package_has_columns_of_what_it_stores_and_tensors_say_below_their_names_what_they_are(
    tiny_llama: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    counted, drafts = ["weights", "max |w|", "window", "outside"], ["BSFP bits", "BSFP dB", "paper dB", "MXFP4 dB"]
    assert list(columns_of(render_page(inspect_path(tiny_llama)))) == [*counted, *drafts]
    inspection = inspect_path(package(tiny_llama, codec="bsfp", segments="paper"))
    page = render_page(inspection)
    groups, tensors = parse(page).findall(".//tbody")
    about = {name_of(row): (row[0].text or "").partition("\n")[2] for row in tensors}
    assert about["model.layers.0.mlp.up_proj.weight"] == "BF16 172 × 64, bsfp, matrix"
    assert about["model.norm.weight"] == "BF16 64, keep, not a matrix"
    assert all("\n" not in (row[0].text or "") for row in groups)
    columns = columns_of(page)
    assert list(columns) == [*counted, "stored bits", "draft dB", *drafts]
    for row, stored, fitted in zip(inspection.tensors, columns["stored bits"], columns["BSFP bits"], strict=True):
        if row.stored is not None and row.drafts is not None:
            assert stored == f"{row.drafts.bsfp_paper_bits_per_weight:.2f}" != fitted
    assert (
        columns["draft dB"][1:]
        == [text if row.stored else "-" for row, text in zip(inspection.tensors, columns["paper dB"], strict=True)][1:]
    )


def share_of(colour: str, pixels: np.ndarray) -> float:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return float((np.abs(pixels[..., :3] - wanted).max(axis=-1) < 0.02).mean())


def test_a_png_shows_bars_and_all_three_drafts(tiny_llama: Path, inspect_path: Inspect, tmp_path: Path) -> None:
    path = tmp_path / "plot.png"
    write_inspection_picture(inspect_path(tiny_llama), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(path)
    assert pixels.shape[0] >= 700 and pixels.shape[1] >= 1700
    assert share_of(BLUE, pixels) > 0.01  # bars inside the window
    assert share_of(ORANGE, pixels) > 0.0003  # markers
    assert share_of(GREEN, pixels) > 0.0003


def test_an_svg_is_well_formed_and_the_same_each_time(tiny_llama: Path, inspect_path: Inspect, tmp_path: Path) -> None:
    inspection = inspect_path(tiny_llama, tensor_glob="*proj*")
    write_inspection_picture(inspection, tmp_path / "first.svg")
    write_inspection_picture(inspection, tmp_path / "second.SVG")
    root = ElementTree.parse(tmp_path / "first.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 50
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.SVG").read_bytes()


@pytest.mark.parametrize("glob", ["*", "positions"])
def test_odd_checkpoints_and_names_are_drawn(
    glob: str, odd_checkpoint: Path, inspect_path: Inspect, tmp_path: Path
) -> None:
    write_inspection_picture(inspect_path(odd_checkpoint, per="tensor", tensor_glob=glob), tmp_path / "odd.png")
    assert imread(tmp_path / "odd.png")[..., :3].std() > 0.01


def test_another_suffix_is_an_error(tiny_llama: Path, inspect_path: Inspect, tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match=r"a picture that ends in '\.pdf'; \.png or \.svg is required\. Choose one"):
        write_inspection_picture(inspect_path(tiny_llama, tensor_glob="*norm*"), tmp_path / "plot.pdf")
