"""Pictures of the cost models: that each is drawn, names what it shows, and is the same for the same question."""

from pathlib import Path

import matplotlib
import pytest
from published.model_cards import GPT_OSS_20B, LLAMA_3_1_8B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import Question
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import strategies_of
from mxconv.errors import MxconvError
from mxconv.report.cost_picture import draw_figure
from mxconv.report.picture import write_picture

LLAMA = ModelSizes.from_fields(Fields(LLAMA_3_1_8B, "config.json"))
EXPERTS = ModelSizes.from_fields(Fields(GPT_OSS_20B, "config.json"))
QUESTION = Question(LLAMA, strategies_of(LLAMA), open_hardware("h100-sxm"))
FIGURES = {
    "draft": ("share of the draft's tokens accepted", "draft tokens a round", "bf16 &lt;- mxfp4", "h100-sxm"),
    "two-drafts": ("share of the outer draft's tokens", "share of the inner draft's tokens", "bsfp &lt;- bsfp draft"),
    "throughput-maps": (
        "SPIRe",
        "MagicDec",
        "vanilla",
        "llama, 4 draft tokens, sparse caches with a window of 64",
        "batch (sequences)",
        "128K",
    ),
    "roofline": ("3350 GB/s", "multiply-adds a byte", "mxfp4 (mxfp4)", "attention"),
}


def write_figure(name: str, question: Question, path: Path) -> None:
    write_picture(path, lambda figure: draw_figure(figure, name, question))


@pytest.mark.parametrize("name", FIGURES)
def test_each_picture_names_its_axes_and_shows_its_numbers(name: str, tmp_path: Path) -> None:
    path = tmp_path / "picture.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write_figure(name, QUESTION, path)
    text = path.read_text()
    for expected in FIGURES[name]:
        assert expected in text


def test_the_same_question_gives_the_same_bytes_and_png_is_png(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg", "a.png"):
        write_figure("roofline", QUESTION, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_an_error(tmp_path: Path) -> None:
    plain = Question(LLAMA, {"bf16": QUESTION.strategies["bf16"]}, QUESTION.hardware)
    with pytest.raises(MxconvError, match=r"--figure two-drafts: no hierarchy with so many drafts; one is required"):
        write_figure("two-drafts", plain, tmp_path / "a.svg")
    with pytest.raises(MxconvError, match=r"\.png or \.svg is required"):
        write_figure("draft", QUESTION, tmp_path / "a.pdf")
    mixture = Question(EXPERTS, strategies_of(EXPERTS), QUESTION.hardware)
    with pytest.raises(MxconvError, match=r"--figure throughput-maps: a mixture of experts; a dense decoder is req"):
        write_figure("throughput-maps", mixture, tmp_path / "a.svg")
