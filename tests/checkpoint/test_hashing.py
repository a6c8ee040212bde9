import shutil
import subprocess
from pathlib import Path

import pytest

from mxconv.checkpoint.hashing import sha256_file
from mxconv.errors import CheckpointError


def test_a_file_is_hashed_in_pieces_and_progress_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert sha256_file(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"a" * 3_000_000)
    pieces: list[int] = []
    digest = sha256_file(path, pieces.append)
    assert len(pieces) > 1 and sum(pieces) == 3_000_000
    if shutil.which("sha256sum"):
        run = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
        assert run.stdout.split()[0] == digest


def test_hashing_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no: no such file; a readable file is required"):
        sha256_file(tmp_path / "no")
