"""Advice about pages: taken where the system has it, and nothing amiss where it has not."""

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize

from mxconv.system.memory import NEIGHBOUR_BYTES, can_forget, forget, release, will_need, will_read
from mxconv.verify import verify


@pytest.fixture
def no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((mmap, "MADV_WILLNEED"), (mmap, "MADV_DONTNEED"), (os, "posix_fadvise")):
        monkeypatch.delattr(module, name, raising=False)


def resident_pages(mapped: mmap.mmap) -> int:
    """Of this map, by what Linux says of it."""
    address = np.frombuffer(mapped, np.uint8).ctypes.data
    lines = Path("/proc/self/smaps").read_text().splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith(f"{address:08x}-"))
    (resident,) = (line.split()[1] for line in lines[begin : begin + 5] if line.startswith("Rss:"))
    return int(resident) * 1024 // mmap.PAGESIZE


@pytest.fixture
def mapped(tmp_path: Path) -> mmap.mmap:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * ((64 * mmap.PAGESIZE + NEIGHBOUR_BYTES) // 256))
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux says which pages are resident")
def test_released_pages_are_gone_and_read_again_the_same(mapped: mmap.mmap) -> None:
    before = bytes(mapped)
    assert resident_pages(mapped) * mmap.PAGESIZE == len(before)
    release(mapped, 10 * mmap.PAGESIZE + 5 + NEIGHBOUR_BYTES, len(before))
    assert resident_pages(mapped) <= 10  # none where they came as one large page
    will_need(mapped, 3, 10**9)
    assert bytes(mapped) == before


@pytest.mark.usefixtures("no_advice")
def test_without_advice_files_are_read_as_before(mapped: mmap.mmap, tmp_path: Path) -> None:
    before = bytes(mapped)
    will_need(mapped, 0, len(before))
    release(mapped, 0, len(before))
    assert bytes(mapped) == before
    with (tmp_path / "file").open("rb") as file:
        will_read(file, 0, 100)
        forget(file)
        assert file.read() == before
    assert not can_forget()


@pytest.mark.usefixtures("no_advice")
@pytest.mark.parametrize("options", [{"codec": "mxfp4"}, {"codec": "bsfp", "segments": "paper"}], ids=str)
def test_a_conversion_without_advice_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    source = write_tiny_llama(tmp_path / "m")
    quantize(source, tmp_path / "p", **options)
    assert verify(tmp_path / "p").lossless
    monkeypatch.undo()
    quantize(source, tmp_path / "q", **options)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "q")
