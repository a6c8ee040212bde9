"""What is asked of a GPU when a call is recorded."""

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")

import torch
from simulated_cuda import simulate

from mxconv.gpu.recorded_call import RecordedCall

GPU = torch.device("cuda:0")


def test_a_call_runs_twice_beside_other_work_and_is_recorded_the_third_time(monkeypatch: pytest.MonkeyPatch) -> None:
    done = simulate(monkeypatch)

    def call() -> int:
        done.append("call")
        return done.count("call")

    recorded = RecordedCall(GPU, call, pool="a pool")
    assert recorded.result == 3
    assert done == ["join", "call", "no waiting", "call", "waiting", "join", "record in a pool", "call", "recorded"]
    done.clear()
    recorded.replay()
    assert done == ["replay"]


def test_a_call_that_waits_is_found_out_before_anything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    done = simulate(monkeypatch)

    def call() -> None:
        done.append("call")
        if torch.cuda.get_sync_debug_mode() == 2:
            raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(RuntimeError, match="synchronizing"):
        RecordedCall(GPU, call)
    assert done == [
        "join",
        "call",
        "no waiting",
        "call",
        "waiting",
        "join",
    ]  # and other work waits for what it launched
    assert torch.cuda.get_sync_debug_mode() == 0
