"""Pictures of kernel figures: that they are drawn, of what, and the same for the same figures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.kernel_result import KernelResult, Sample, summarize
from mxconv.bench.machine import Machine
from mxconv.bench.operands import KERNELS, make_operand
from mxconv.bench.plot import write_bandwidth_plot, write_roofline
from mxconv.errors import MxconvError

MACHINE = Machine("A processor", 2, "GCC 12", None)
Writer = Callable[[list[KernelResult], Machine, Path], None]
WRITERS: list[Writer] = [write_bandwidth_plot, write_roofline]


@pytest.fixture(scope="module")
def results() -> list[KernelResult]:
    found = []
    for kernel in KERNELS:
        operand = make_operand(kernel, (64, 128))
        for width in (1, 4, 16):
            samples = [Sample(1e-6 * width * i, 50e9, 1e11) for i in (1, 2, 3)]
            found.append(summarize(operand, "avx2", width, samples))
    return found


@pytest.mark.parametrize("write", WRITERS)
def test_the_picture_names_every_kernel_the_machine_and_the_shape(
    write: Writer, results: list[KernelResult], tmp_path: Path
) -> None:
    import matplotlib

    path = tmp_path / "picture.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write(results, MACHINE, path)
    text = path.read_text()
    for expected in (*KERNELS, "avx2", "A processor", "64 x 128", "2 threads"):
        assert f"{expected}" in text


def test_an_axis_of_less_than_a_power_of_ten_has_plain_numbers(results: list[KernelResult], tmp_path: Path) -> None:
    import matplotlib

    path = tmp_path / "picture.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write_roofline([r for r in results if r.num_tokens == 16], MACHINE, path)
    text = path.read_text()
    assert "mathdefault" not in text
    assert ">50<" in text or ">200<" in text


@pytest.mark.parametrize("write", WRITERS)
def test_the_same_figures_give_the_same_bytes(write: Writer, results: list[KernelResult], tmp_path: Path) -> None:
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        write(results, MACHINE, path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("write", WRITERS)
def test_each_implementation_has_a_panel(write: Writer, results: list[KernelResult], tmp_path: Path) -> None:
    import matplotlib

    names = ["portable", "avx2", "avxvnni"]
    path = tmp_path / "picture.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        write([replace(r, implementation=name) for name in names for r in results], MACHINE, path)
    assert all(f">{name}<" in path.read_text() for name in names)


@pytest.mark.parametrize("write", WRITERS)
def test_one_figure_alone_is_a_picture_too(write: Writer, results: list[KernelResult], tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    write(results[:1], MACHINE, path)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("write", WRITERS)
def test_another_suffix_is_refused(write: Writer, results: list[KernelResult], tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match=r"\.png or \.svg is required"):
        write(results, MACHINE, tmp_path / "picture.pdf")
