"""Room on disks, orders of writing, and reads and writes at an offset, with the calls of the system and without.

A disk that is really full is in tests/conversion/test_killed.py.
"""

import errno
import mmap
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize

from mxconv.package import folder_staging
from mxconv.system.disk import flush_folder, read_at, reserve, settle, write_at
from mxconv.verify import verify

PIECE = 4096


@pytest.fixture
def no_reservation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)


@pytest.mark.usefixtures("no_reservation")
def test_where_nothing_is_reserved_more_than_is_free_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b", buffering=0) as file:
        reserve(file, 5000)
        file.write(b"x" * 5000)
        reserve(file, 4000)
        with pytest.raises(OSError) as caught:
            reserve(file, shutil.disk_usage(tmp_path).total + 1)
    assert caught.value.errno == errno.ENOSPC
    assert (tmp_path / "file").read_bytes() == b"x" * 4000


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux lists the open files of a process")
@pytest.mark.parametrize("renames_open_files", [True, False])
def test_where_open_files_hold_a_folder_fast_a_package_is_renamed_with_none_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames_open_files: bool
) -> None:
    monkeypatch.setattr(folder_staging, "RENAMES_OPEN_FILES", renames_open_files)
    source = write_tiny_llama(tmp_path / "m")
    rename, num_open = Path.rename, []

    def watched(path: Path, target: Path) -> Path:
        links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        num_open.append(sum(link.is_relative_to(path) for link in links))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched)
    for force in (False, True):
        quantize(source, tmp_path / "p", force=force)
        assert verify(tmp_path / "p").lossless
    in_place, aside, replaced = num_open
    assert (in_place > 0, aside, replaced > 0) == (renames_open_files, 0, renames_open_files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "p"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows opens no folders")
def test_names_are_flushed_where_folders_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        flush_folder(tmp_path / "absent")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "platform", "win32")
        flush_folder(tmp_path / "absent")  # opens nothing


def test_writes_settle_with_or_without_the_systems_call(monkeypatch: pytest.MonkeyPatch) -> None:
    settle()
    monkeypatch.delattr(os, "sync", raising=False)
    settle()


@pytest.fixture(params=["system", "fallback"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fallback":
        monkeypatch.delattr(os, "pread", raising=False)
        monkeypatch.delattr(os, "pwrite", raising=False)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_threads_write_and_read_side_by_side(tmp_path: Path) -> None:
    numbers = range(50)
    pieces = [bytes([number]) * PIECE for number in numbers]
    with (tmp_path / "file").open("w+b", buffering=0) as file, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_at(file, pieces[number], number * PIECE), reversed(numbers)))
        assert list(pool.map(lambda number: read_at(file, PIECE, number * PIECE), numbers)) == pieces
        assert read_at(file, PIECE, 50 * PIECE - 3) == pieces[-1][:3]
        assert read_at(file, PIECE, 50 * PIECE) == b""
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_a_conversion_without_any_of_the_systems_calls_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No room is reserved, no page advised about, and nothing read or written at an offset by the system."""
    source = write_tiny_llama(tmp_path / "m", num_shards=2)
    quantize(source, tmp_path / "p", num_threads=4)
    for name in ("posix_fallocate", "posix_fadvise", "pread", "pwrite"):
        monkeypatch.delattr(os, name, raising=False)
    for name in ("MADV_WILLNEED", "MADV_DONTNEED"):
        monkeypatch.delattr(mmap, name, raising=False)
    quantize(source, tmp_path / "q", num_threads=4)
    assert files_of(tmp_path / "q") == files_of(tmp_path / "p")
    assert verify(tmp_path / "q").lossless
