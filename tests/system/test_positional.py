"""Reads and writes at an offset, with the system's calls and without them."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize

from mxconv.system.disk import read_at, write_at
from mxconv.verify import verify

PIECE = 4096


@pytest.fixture(params=["system", "fallback"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fallback":
        monkeypatch.delattr(os, "pread", raising=False)
        monkeypatch.delattr(os, "pwrite", raising=False)
    return str(request.param)


@pytest.mark.usefixtures("way")
def test_threads_write_and_read_side_by_side(tmp_path: Path) -> None:
    numbers = range(200)
    pieces = [bytes([number]) * PIECE for number in numbers]
    with (tmp_path / "file").open("w+b", buffering=0) as file, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_at(file, pieces[number], number * PIECE), reversed(numbers)))
        assert list(pool.map(lambda number: read_at(file, PIECE, number * PIECE), numbers)) == pieces
        assert read_at(file, PIECE, 200 * PIECE - 3) == pieces[-1][:3]
        assert read_at(file, PIECE, 200 * PIECE) == b""
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("options", [{"codec": "mxfp4"}, {"codec": "bsfp", "segments": "paper"}], ids=str)
def test_a_conversion_without_the_systems_calls_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    source = write_tiny_llama(tmp_path / "m", num_shards=2)
    quantize(source, tmp_path / "p", num_threads=4, **options)
    monkeypatch.delattr(os, "pread", raising=False)
    monkeypatch.delattr(os, "pwrite", raising=False)
    quantize(source, tmp_path / "q", num_threads=4, **options)
    assert files_of(tmp_path / "q") == files_of(tmp_path / "p")
    assert verify(tmp_path / "q").lossless
