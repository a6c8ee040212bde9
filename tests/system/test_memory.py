"""Peak memory by each of the ways in which systems tell it, and advice about pages where the system takes it."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mxconv.system import processor as memory
from mxconv.system.processor import NEIGHBOUR_BYTES, can_forget, forget, peak_rss_bytes, release, will_read

GROWS = """
import numpy as np
from mxconv.system.processor import peak_rss_bytes
grown = np.ones(peak_rss_bytes() + 20_000_000, np.uint8)
assert grown.nbytes < peak_rss_bytes() < 3 * grown.nbytes
"""


def test_the_peak_is_of_this_process() -> None:
    """In a process that is small, started by one that is large."""
    subprocess.run([sys.executable, "-c", GROWS], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="a way of Linux")
def test_without_proc_the_systems_count_of_pages_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = peak_rss_bytes()
    monkeypatch.setattr(memory, "STATUS", Path("/absent/status"))
    assert listed / 2 < peak_rss_bytes() < 2 * listed


@pytest.mark.skipif(sys.platform != "linux", reason="pretends to be another system on Linux")
def test_macos_counts_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "STATUS", Path("/absent/status"))
    kilobytes = peak_rss_bytes() // 1024
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "platform", "darwin")
        found = peak_rss_bytes()
    assert kilobytes <= found < 2 * kilobytes  # Linux's kilobytes, taken for bytes


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
    assert bytes(mapped) == before


@pytest.mark.usefixtures("no_advice")
def test_without_advice_files_are_read_as_before(mapped: mmap.mmap, tmp_path: Path) -> None:
    before = bytes(mapped)
    release(mapped, 0, len(before))
    assert bytes(mapped) == before
    with (tmp_path / "file").open("rb") as file:
        will_read(file, 0, 100)
        forget(file)
        assert file.read() == before
    assert not can_forget()
