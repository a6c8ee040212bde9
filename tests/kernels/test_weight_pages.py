"""Weights in large pages: the same bytes, each once, as long as there is memory."""

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

import mxconv
from mxconv.errors import MxconvError
from mxconv.kernels import weight_pages
from mxconv.kernels.weight_pages import CHUNK_BYTES, FEWEST_BYTES, LARGE_PAGE, LINE, WeightPages, large_pages
from mxconv.system import processor as memory
from tests.packages import quantize

MODEL = Path(__file__).parent.parent.parent / "examples/models/pylib-0.2m"


def array(num_bytes: int, seed: int = 0) -> np.ndarray:
    """Numbers in memory that NumPy does not own, as of a mapped file."""
    return np.frombuffer(bytearray(np.random.default_rng(seed).bytes(num_bytes)), np.uint16)


def test_copies_are_equal_read_only_aligned_and_apart():
    pages = WeightPages("copy")
    arrays = [array(FEWEST_BYTES + 2 * i, i).reshape(-1, 1) for i in range(40)]
    copies = [pages.put(each) for each in arrays]
    for given, copy in zip(arrays, copies, strict=True):
        assert copy.dtype == given.dtype and not copy.flags.writeable and not np.shares_memory(copy, given)
        assert copy.ctypes.data % LINE == 0
    given = arrays[0]
    given += 1  # what was copied stays
    np.testing.assert_array_equal(copies[0], given - 1)
    for given, copy in zip(arrays[1:], copies[1:], strict=True):
        np.testing.assert_array_equal(copy, given)


def test_an_array_that_two_matrices_share_is_copied_once_until_it_is_forgotten():
    pages, weights = WeightPages("copy"), array(FEWEST_BYTES)
    first = pages.put(weights)
    assert np.shares_memory(first, pages.put(weights.view()))
    pages.forget()
    assert not np.shares_memory(first, pages.put(weights))


def test_a_chunk_is_filled_before_the_next_and_what_is_larger_has_its_own():
    pages = WeightPages("copy")
    first, second = pages.put(array(FEWEST_BYTES)), pages.put(array(FEWEST_BYTES, 1))
    assert second.ctypes.data - first.ctypes.data == FEWEST_BYTES
    assert first.ctypes.data % LARGE_PAGE == 0 or not weight_pages.has_large_pages()
    large = array(CHUNK_BYTES + 2)
    np.testing.assert_array_equal(pages.put(large), large)


def test_small_and_strided_arrays_stay_and_so_does_all_where_memory_is_short(monkeypatch: pytest.MonkeyPatch):
    small, strided = array(FEWEST_BYTES - 2), array(4 * FEWEST_BYTES)[::2]
    assert WeightPages("copy").put(small) is small and WeightPages("copy").put(strided) is strided
    monkeypatch.setattr(weight_pages, "has_large_pages", lambda: True)
    monkeypatch.setattr(weight_pages, "available_bytes", lambda: 3 * FEWEST_BYTES)
    pages = WeightPages()
    one, other = array(FEWEST_BYTES), array(FEWEST_BYTES, 1)
    assert pages.put(one) is not one and pages.put(other) is other and WeightPages("map").put(one) is one


def test_weights_that_were_decoded_are_in_memory_already():
    made = array(FEWEST_BYTES).copy()
    pages = WeightPages("copy")
    assert pages.put(made) is made and (view := made.reshape(2, -1)[:]) is pages.put(view)


def test_memory_that_a_container_may_not_take_is_not_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "meminfo").write_text("MemTotal: 2048 kB\nMemAvailable: 1024 kB\n")
    (tmp_path / "own").write_text("0::/box/inner\n")
    for name, value in (
        ("MEMORY", tmp_path / "meminfo"),
        ("OWN_GROUP", tmp_path / "own"),
        ("GROUPS", tmp_path / "groups"),
    ):
        monkeypatch.setattr(memory, name, value)
    assert memory.available_bytes() == 1 << 20
    inner = tmp_path / "groups/box/inner"
    inner.mkdir(parents=True)
    for group, most, used in ((inner, "max", 5), (inner.parent, "500000", 100000)):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
    assert memory.available_bytes() == 400000
    (inner / "memory.max").write_text("3\n")
    assert memory.available_bytes() == 0
    (tmp_path / "own").write_text("9:pids:/other\n4:memory:/old/inner\n0::/\n")
    old = tmp_path / "groups/memory/old"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("700000\n")
    (old / "memory.stat").write_text("cache 9\nrss 5\ntotal_cache 600000\ntotal_rss 200000\ntotal_rss_huge 7\n")
    assert memory.available_bytes() == 500000
    (tmp_path / "meminfo").unlink()
    assert memory.available_bytes() == 0


def test_an_unknown_word_is_refused():
    with pytest.raises(MxconvError, match=r"weights 'disk': unknown; one of auto, map, copy is required"):
        WeightPages("disk")  # type: ignore[arg-type]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which pages are large")
def test_memory_is_in_large_pages_where_the_system_gives_them():
    if Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split("[")[1].startswith("never"):
        pytest.skip("large pages are off on this machine")
    assert hasattr(mmap, "MADV_HUGEPAGE")
    memory = large_pages(4 * LARGE_PAGE)
    memory[:] = 1
    start = f"{memory.ctypes.data:x}-"
    lines = Path("/proc/self/smaps").read_text().splitlines()
    begins = [i for i, line in enumerate(lines) if "-" in line.split(" ")[0]]
    for first, after in zip(begins, [*begins[1:], len(lines)], strict=True):
        low, high = (int(part, 16) for part in lines[first].split(" ")[0].split("-"))
        if low <= memory.ctypes.data < high:
            flags = next(line for line in lines[first:after] if line.startswith("VmFlags:"))
            assert " hg" in flags, start
            return
    pytest.fail("the memory is in no mapping")


def test_tokens_are_the_same_wherever_weights_lie(tmp_path: Path):
    quantize(MODEL, tmp_path / "package", codec="bsfp")
    answers = []
    for place in ("map", "copy"):
        with mxconv.load(tmp_path / "package", weights=place) as model:
            answers.append(model.generate("def main", max_new_tokens=24).token_ids)
    assert answers[0] == answers[1]
