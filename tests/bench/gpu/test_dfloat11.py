"""How the package dfloat11 is asked: with one that is simulated, which stores BF16 as it is and knows its hook."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")

import torch

from mxconv.bench.gpu import dfloat11
from mxconv.bench.gpu.dfloat11 import DFloat11Matrix, why_not

CPU = torch.device("cpu")
POSITIONS = np.array([0, 40, 100, 140], np.uint32)  # the second block decodes most


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams that its kernel was launched on."""
    used: list[int] = []

    class ExternalStream:
        def __init__(self, pointer: int) -> None:
            self._pointer = pointer

        def __enter__(self) -> None:
            used.append(self._pointer)

        def __exit__(self, *_: object) -> None:
            pass

    def encode_weights(weights: list[torch.Tensor], codec: str, bytes_per_thread: int, threads: int) -> Any:
        assert (codec, bytes_per_thread, threads) == ("short codes", 8, 512)
        raw = weights[0].view(torch.uint8)
        return raw, torch.zeros(7, dtype=torch.uint8), torch.from_numpy(POSITIONS), torch.zeros(5), None

    def get_hook(threads: tuple[int, ...], bytes_per_thread: int) -> Any:
        def hook(module: Any, _: object) -> None:
            assert module.shared_mem_size == 512 * 4 + 4 + 60 * 2
            raw = module.encoded_exponent.view(torch.bfloat16)
            module.weight = raw.view(module.out_features, module.in_features)

        return hook

    package = ModuleType("dfloat11.dfloat11")
    package.__dict__.update(
        get_codec=lambda weights: (None, "counts"),
        get_32bit_codec=lambda counter: ("short codes", counter, "table"),
        get_luts=lambda table: torch.zeros(3, 256),
        encode_weights=encode_weights,
        get_hook=get_hook,
    )
    cupy = ModuleType("cupy")
    cupy.cuda = SimpleNamespace(ExternalStream=ExternalStream)  # type: ignore[attr-defined]
    for name, module in {"dfloat11": ModuleType("dfloat11"), "dfloat11.dfloat11": package, "cupy": cupy}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=17))
    return used


def test_a_layer_is_decoded_on_torchs_stream_and_multiplied_by_torch(streams: list[int]) -> None:
    weights = torch.randn(6, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    patterns = weights.view(torch.int16).numpy().view(np.uint16)
    matrix = DFloat11Matrix.encode(patterns, CPU)
    assert torch.equal(matrix.rebuild(), weights)
    x = torch.randn(2, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(matrix.copy().product(x), torch.matmul(x, weights.T))
    assert streams == [17, 17]
    assert matrix.num_bytes == 2 * weights.numel() + 7 + 4 * len(POSITIONS) + 4 * 5 + 4 * 3 * 256


def test_copies_lie_elsewhere(streams: list[int]) -> None:
    matrix = DFloat11Matrix.encode(np.zeros((4, 8), np.uint16), CPU)
    copy = matrix.copy()
    assert copy.rebuild().data_ptr() != matrix.rebuild().data_ptr()


def test_why_it_is_left_out_is_said(streams: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda:0")
    assert why_not(gpu) is None
    assert why_not(CPU) == "it runs on GPUs alone"

    def fail(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(dfloat11.importlib, "import_module", fail)
    assert why_not(gpu) == "import dfloat11: No module named 'dfloat11.dfloat11'"
