"""The kernel that reads leaves nothing out, begins anew at the end, and compiles for GPUs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE

from mxconv.bench.gpu import read_bandwidth
from mxconv.bench.gpu.read_bandwidth import PIECE_BYTES, ReadBandwidth
from mxconv.bench.gpu.read_kernel import PIECE_WORDS, read_pieces

COMPILE = """
import sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from mxconv.bench.gpu.read_kernel import NUM_WARPS, PIECE_WORDS, _read
signature = {"words": "*i32", "sums": "*i32", "first": "i32", "num_pieces": "i32", "PIECE": "constexpr"}
source = ASTSource(_read, signature, constexprs={(4,): PIECE_WORDS}, attrs={(0,): [["tt.divisibility", 16]]})
target = GPUTarget("cuda", int(sys.argv[1]), 32)
compiled = triton.compile(source, target=target, options={"num_warps": NUM_WARPS})
print(compiled.asm["ptx"].count("ld.global.v4") if compiled.asm["cubin"] else 0)
"""


def test_every_word_of_the_pieces_is_read_and_the_first_follow_the_last() -> None:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(-1000, 1000, (3 * PIECE_WORDS,), generator=generator, dtype=torch.int32).to(DEVICE)
    sums = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    read_pieces(words, 1, 3, sums)
    of_pieces = words.view(3, PIECE_WORDS).sum(dim=1).tolist()
    assert sums.tolist() == [of_pieces[1], of_pieces[2], of_pieces[0], 0]


def test_a_launch_begins_where_the_last_one_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def record(words: torch.Tensor, first: int, count: int, sums: torch.Tensor) -> None:
        assert len(words) == 5 * PIECE_WORDS and len(sums) >= count
        asked.append((first, count))

    monkeypatch.setattr(read_bandwidth, "read_pieces", record)
    read = ReadBandwidth(torch.device("cpu"), 5 * PIECE_BYTES - 7).of(2 * PIECE_BYTES - 1, 4)
    read()
    assert asked == [(0, 2), (2, 2), (4, 2), (1, 2)]


def test_the_rate_is_bytes_over_the_seconds_of_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxconv.bench.gpu.launches.Launches.seconds", lambda _: 1e-3)
    assert ReadBandwidth(DEVICE, PIECE_BYTES).of(3 * PIECE_BYTES, 1)() == pytest.approx(3 * PIECE_BYTES / 1e-3)


@pytest.mark.parametrize("capability", ["80", "90"])
def test_the_kernel_compiles_to_loads_of_16_bytes(capability: str, tmp_path: Path) -> None:
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", COMPILE, capability]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == 8  # 32 words a thread
