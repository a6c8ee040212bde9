import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from mxconv.errors import MxconvError
from mxconv.report.inspection import Inspection
from mxconv.report.inspection_picture import write_inspection_picture
from mxconv.report.picture import BLUE, GREEN, ORANGE

Inspect = Callable[..., Inspection]


def share_of(colour: str, pixels: np.ndarray) -> float:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return float((np.abs(pixels[..., :3] - wanted).max(axis=-1) < 0.02).mean())


def test_a_png_shows_bars_and_all_three_drafts(
    trained_model: Path, inspect_trained: Callable[[], Inspection], tmp_path: Path
) -> None:
    path = tmp_path / "plot.png"
    write_inspection_picture(inspect_trained(), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    pixels = imread(path)
    assert pixels.shape[0] >= 700 and pixels.shape[1] >= 1700
    assert share_of(BLUE, pixels) > 0.01  # bars inside the window
    assert share_of(ORANGE, pixels) > 0.0003  # markers
    assert share_of(GREEN, pixels) > 0.0003


def test_an_svg_is_well_formed_and_the_same_each_time(tiny_llama: Path, inspect_path: Inspect, tmp_path: Path) -> None:
    inspection = inspect_path(tiny_llama)
    write_inspection_picture(inspection, tmp_path / "first.svg")
    write_inspection_picture(inspection, tmp_path / "second.SVG")
    root = ElementTree.parse(tmp_path / "first.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 50
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.SVG").read_bytes()


@pytest.mark.parametrize("glob", ["*", "positions", "zeros*", "experts", "a &*"])
def test_odd_checkpoints_and_names_are_drawn(
    glob: str, odd_checkpoint: Path, inspect_path: Inspect, tmp_path: Path
) -> None:
    write_inspection_picture(inspect_path(odd_checkpoint, per="tensor", tensor_glob=glob), tmp_path / "odd.png")
    assert imread(tmp_path / "odd.png")[..., :3].std() > 0.01


def test_another_suffix_is_an_error(tiny_llama: Path, inspect_path: Inspect, tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match=r"a picture that ends in '\.pdf'; \.png or \.svg is required\. Choose one"):
        write_inspection_picture(inspect_path(tiny_llama, tensor_glob="*norm*"), tmp_path / "plot.pdf")
