"""Our layers against torch's, on the weights that theirs say they hold."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles import mxfp4_by_compressed_tensors
from safetensors.torch import load_file, save_file
from torch import nn

from mxconv.errors import ModelError
from mxconv.interop.transformers import BSFPLinear, MXFP4Linear

SHAPES = [(1, 1), (15, 31), (16, 32), (17, 33), (40, 172)]
Make = Callable[[nn.Linear], Any]


def linear(
    out_features: int, in_features: int, dtype: torch.dtype = torch.bfloat16, bias: bool = True, seed: int = 0
) -> nn.Linear:
    torch.manual_seed(seed)
    layer = nn.Linear(in_features, out_features, bias=bias)
    nn.init.normal_(layer.weight, std=0.05)
    return layer.to(dtype)


def activations(*shape: int, seed: int = 1) -> torch.Tensor:
    """Float32 values that BF16 holds: kernels of BF16 weights round activations to it."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16().float()


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """By torch, in float64."""
    return nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


def assert_close(found: torch.Tensor, expected: torch.Tensor, relative: float) -> None:
    assert found.shape == expected.shape
    assert (found.double() - expected).norm() <= relative * expected.norm()


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_mxfp4_multiplies_its_own_values_with_int8_activations(rows: int, columns: int) -> None:
    layer = MXFP4Linear.from_linear(linear(rows, columns, bias=rows > 16))
    x = activations(5, columns)
    assert_close(layer(x), product(x, layer.weight(), layer.bias), 0.02)  # int8: one part in 254 of a block's largest


def test_mxfp4_values_are_those_of_compressed_tensors() -> None:
    source = linear(48, 96)
    weight = source.weight.detach().float().numpy()
    codes, scales = mxfp4_by_compressed_tensors(weight)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[codes & 7] * np.where(codes & 8, -1, 1)
    expected = values * np.repeat(2.0 ** (scales.astype(np.float32) - 127), 32, axis=1)
    assert np.array_equal(MXFP4Linear.from_linear(source, scale_rule="even").weight().numpy(), expected)


@pytest.mark.parametrize(("rows", "columns"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bsfp_holds_and_multiplies_the_exact_weights(rows: int, columns: int, dtype: torch.dtype) -> None:
    source = linear(rows, columns, dtype)
    layer = BSFPLinear.from_linear(source)
    assert layer.weight().dtype == dtype
    assert torch.equal(layer.weight().view(torch.int16), source.weight.view(torch.int16))
    x = activations(3, columns)
    assert_close(layer(x), product(x, source.weight.detach(), source.bias.detach()), 1e-5)


def test_one_bsfp_layer_is_target_and_draft() -> None:
    source = linear(64, 256)
    layer = BSFPLinear.from_linear(source)
    x = activations(4, 256)
    exact = layer(x)
    layer.level = "draft"
    draft = layer(x)
    error = (draft - exact).norm() / exact.norm()
    assert 0.01 < error < 0.2  # about 19 dB
    layer.level = "target"
    assert torch.equal(layer(x), exact)
    with pytest.raises(ModelError, match="level 'both'; target or draft is required"):
        layer.level = "both"  # type: ignore[assignment]


@pytest.mark.parametrize("make", [MXFP4Linear.from_linear, BSFPLinear.from_linear])
def test_rows_do_not_depend_on_their_batch(make: Make) -> None:
    layer = make(linear(40, 172))
    x = activations(64, 172)
    assert torch.equal(layer(x), torch.cat([layer(row[None]) for row in x]))


@pytest.mark.parametrize("make", [MXFP4Linear.from_linear, BSFPLinear.from_linear])
def test_any_leading_axes_and_float_dtypes_go_through(make: Make) -> None:
    layer = make(linear(40, 64))
    x = activations(2, 3, 64)
    expected = layer(x.reshape(6, 64)).reshape(2, 3, 40)
    assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x.transpose(0, 1)), expected.transpose(0, 1))
    assert layer(x[0, 0]).shape == (40,)
    assert layer(x[:0]).shape == (0, 3, 40)
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        assert torch.equal(layer(x.to(dtype)), expected.to(dtype))


def test_kernels_read_the_buffers_where_they_lie() -> None:
    layer = MXFP4Linear.from_linear(linear(16, 64, bias=False))
    x = activations(1, 64)
    assert layer(x).any()
    layer.codes.zero_()
    assert not layer(x).any()
    layer.codes = MXFP4Linear.from_linear(linear(16, 64, bias=False)).codes  # or another buffer, put in its place
    assert layer(x).any()


@pytest.mark.parametrize("kind", [MXFP4Linear, BSFPLinear])
def test_a_state_saved_as_safetensors_fills_an_empty_layer(kind: Any, tmp_path: Path) -> None:
    layer = kind.from_linear(linear(40, 172))
    save_file(layer.state_dict(), tmp_path / "state.safetensors")
    other = kind(172, 40, torch.zeros(40))
    other.load_state_dict(load_file(tmp_path / "state.safetensors"))
    x = activations(4, 172)
    assert torch.equal(other(x), layer(x))
    assert torch.equal(other.weight(), layer.weight())
    other.load_state_dict(kind.from_linear(linear(40, 172, seed=3)).state_dict())  # with other escapes
    assert not torch.equal(other(x), layer(x))


@pytest.mark.parametrize("make", [MXFP4Linear.from_linear, BSFPLinear.from_linear])
def test_a_layer_is_copied_moved_and_printed_like_any_other(make: Make) -> None:
    layer = make(linear(40, 64))
    x = activations(2, 64)
    expected = layer(x)
    assert torch.equal(copy.deepcopy(layer)(x), expected)
    layer.bias.zero_()
    expected = layer(x)
    assert torch.equal(layer.half()(x), expected)
    assert "in_features=64, out_features=40, bias=True" in repr(layer)
    assert list(layer.parameters()) == []


def test_wrong_inputs_are_refused() -> None:
    layer = MXFP4Linear.from_linear(linear(16, 64))
    for x, message in [
        (torch.zeros(2, 64).to(torch.float8_e4m3fn), r"input of torch\.float8_e4m3fn; float32, bfloat16, float16 or"),
        (torch.zeros(2, 64, dtype=torch.int64), r"input of torch\.int64; float32"),
        (torch.zeros(2, 63), r"input of shape \(2, 63\); a last axis of 64 is required"),
        (torch.zeros(()), r"input of shape \(\); a last axis of 64"),
        (torch.zeros(2, 64, device="meta"), "input on meta; its kernels run on the CPU"),
        (torch.zeros(2, 64, requires_grad=True), r"requires a gradient; this layer is for inference\. Use torch\.no"),
    ]:
        with pytest.raises(ModelError, match=message):
            layer(x)
    with torch.no_grad():
        assert layer(torch.zeros(2, 64, requires_grad=True)).shape == (2, 16)


def test_a_layer_moved_away_says_so() -> None:
    layer = MXFP4Linear.from_linear(linear(16, 64)).to("meta")
    with pytest.raises(ModelError, match="buffer codes is not on the CPU, where its kernels run"):
        layer(torch.zeros(1, 64))


def test_weights_that_cannot_be_encoded_are_refused() -> None:
    cases: list[tuple[nn.Linear, str]] = [
        (linear(16, 64, torch.float32), "fc: float32 weights that BF16 does not hold exactly; 16-bit weights"),
        (linear(16, 64, torch.float64), r"fc: weights of torch\.float64; bfloat16 or float16 is required"),
        (linear(16, 64).to(torch.float8_e5m2), r"fc: weights of torch\.float8_e5m2; bfloat16 or float16"),
        (nn.Linear(64, 16, device="meta"), "fc: weights on meta; the CPU is required"),
    ]
    for source, message in cases:
        with pytest.raises(ModelError, match=message):
            BSFPLinear.from_linear(source, name="fc")
    infinite = linear(16, 64)
    infinite.weight.data[3, 7] = float("inf")
    with pytest.raises(ModelError, match=r"fc: weight \[3, 7\] is inf; finite weights are required"):
        MXFP4Linear.from_linear(infinite, name="fc")
    upcast = linear(16, 64).float()  # BF16 values in float32 are taken as what they are
    assert torch.equal(BSFPLinear.from_linear(upcast).weight().float(), upcast.weight)


def test_a_state_of_another_layer_is_refused_before_a_kernel_reads_it() -> None:
    layer = MXFP4Linear(64, 16)
    with pytest.raises(ModelError, match=r"buffer codes is uint8 \[2, 8, 64\]; uint8 \[1, 8, 64\] is required"):
        layer.load_state_dict(MXFP4Linear.from_linear(linear(32, 64, bias=False)).state_dict())
        layer(torch.zeros(1, 64))
    empty = BSFPLinear(64, 16)
    with pytest.raises(ModelError, match="buffers hold no segment table; one is required"):
        empty(torch.zeros(1, 64))
    state = BSFPLinear.from_linear(linear(16, 64, bias=False)).state_dict()
    forgeries: list[tuple[str, torch.Tensor, str]] = [
        ("starts", state["starts"] + 32000, r"BSFPLinear: segment table: start \d+; 0 to"),
        ("escape_offsets", state["escape_offsets"] + 5, "escape offsets and counts disagree"),
        ("residual_low", state["residual_low"][:, 1:], r"buffer residual_low is uint8 \[1, 7, 128\]"),
        ("format", torch.tensor([8, 3], dtype=torch.int32), "hold no segment table"),
    ]
    for name, value, message in forgeries:
        layer = BSFPLinear(64, 16)
        layer.load_state_dict(state | {name: value.contiguous()})
        with pytest.raises(ModelError, match=message):
            layer(torch.zeros(1, 64))
