"""What a GPU must be, and what is said where it is not. GPUs are simulated: torch is asked, and answers for them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")

import torch

from mxconv.errors import ModelError
from mxconv.gpu import device as of_device
from mxconv.gpu.device import checked_device, require_room


@pytest.fixture
def triton_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_device, "find_spec", lambda _: object())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, triton_is_there: None) -> Any:
    """A GPU of a compute capability."""

    def simulate(capability: tuple[int, int]) -> None:
        answers = {"is_available": True, "device_count": 1, "current_device": 0, "get_device_name": "A GPU"}
        for name, answer in (answers | {"get_device_capability": capability}).items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
        monkeypatch.setattr(torch.version, "hip", None)

    return simulate


def test_without_triton_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_device, "find_spec", lambda _: None)
    with pytest.raises(ModelError, match=r"Triton is not installed; .* Run: pip install '.\[gpu\]'"):
        checked_device("cuda")


def test_a_gpu_that_is_not_there_or_too_old_is_named(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu((8, 0))
    assert checked_device("cpu") == torch.device("cpu")
    assert checked_device("cuda") == torch.device("cuda:0")
    with pytest.raises(ModelError, match="device cuda:3: there are 1 GPUs; count from cuda:0"):
        checked_device("cuda:3")
    with pytest.raises(ModelError, match="device mps: not an NVIDIA GPU"):
        checked_device("mps")
    gpu((7, 5))
    with pytest.raises(ModelError, match=r"A GPU: compute capability 7\.5; 8\.0 or later is required"):
        checked_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ModelError, match=r"device cuda: torch .* finds no GPU; one with its driver and a torch built"):
        checked_device("cuda")


def test_too_little_memory_is_said_in_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (3_000_000_000, 8_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 1_500_000_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 500_000_000)
    require_room(device, 3_700_000_000, "model", "Take less.")  # 4 GB are free, 0.27 of them to work in
    with pytest.raises(
        ModelError, match=r"model: 3\.80 GB of weights and 0\.27 GB .* on cuda:0; 4\.00 GB are free\. Take less\."
    ):
        require_room(device, 3_800_000_000, "model", "Take less.")
    require_room(torch.device("cpu"), 1 << 60, "model", "Take less.")


def test_without_triton_everything_imports_and_what_needs_it_says_so(tmp_path: Path) -> None:
    """In a process where importing Triton fails."""
    (tmp_path / "triton.py").write_text("raise ImportError('no Triton here')")
    lines = [
        "import mxconv.gpu.load_package, mxconv.interop.transformers as interop",
        "from mxconv.gpu import device",
        "device.find_spec = lambda name: None",
        "interop.quantize_model(__import__('torch').nn.Sequential(__import__('torch').nn.Linear(4, 4).bfloat16()),"
        " device='cuda')",
    ]
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", "\n".join(lines)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "mxconv.errors.ModelError: device cuda: Triton is not installed" in result.stderr
