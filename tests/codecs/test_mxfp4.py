from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from mxconv.codecs.e2m1 import VALUES
from mxconv.codecs.mxfp4 import SCALE_RULES, ScaleRule, dequantize_mxfp4, quantize_mxfp4
from mxconv.errors import CodecError

every_rule = pytest.mark.parametrize("rule", SCALE_RULES)
matrices = arrays(
    np.float32,
    array_shapes(min_dims=2, max_dims=2, max_side=70),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def gaussian(rows: int, columns: int, sigma: float = 0.02) -> np.ndarray:
    return np.random.default_rng(columns).normal(0, sigma, (rows, columns)).astype(np.float32)


def amax_of(values: np.ndarray) -> np.ndarray:
    padded = np.zeros((len(values), -(-values.shape[1] // 32) * 32), np.float64)
    padded[:, : values.shape[1]] = values
    return np.abs(padded).reshape(len(values), -1, 32).max(axis=-1)


@every_rule
@settings(max_examples=20)
@given(values=matrices)
def test_the_error_is_bounded_by_the_widest_gap_or_by_saturation(rule: ScaleRule, values: np.ndarray) -> None:
    codes, scales = quantize_mxfp4(values, rule)
    errors = np.abs(dequantize_mxfp4(codes, scales)[:, : values.shape[1]].astype(np.float64) - values)
    units = 2.0 ** (np.repeat(scales, 32, axis=1)[:, : values.shape[1]].astype(np.float64) - 127)
    # gaps are at most 2, so 1 to the nearest; floor scales let 8 saturate to 6, `even` 7, `ceil` nothing
    bound = np.where((units < 2.0**125) & (rule in ("ceil", "even")), 1, 2)
    assert (errors <= units * bound).all()


@every_rule
@settings(max_examples=20)
@given(values=matrices)
def test_scales_follow_their_rule(rule: ScaleRule, values: np.ndarray) -> None:
    amax = amax_of(values)
    scales = quantize_mxfp4(values, rule)[1].astype(int) - 127
    safe = np.where(amax > 0, amax, 1)
    floor = np.frexp(safe)[1] - 3
    expected = {
        "ocp": [floor],
        "ggml": [floor],
        "even": [floor + (safe >= 1.75 * 2.0 ** (floor + 2))],
        "ceil": [floor + (safe > 6 * 2.0**floor)],
        "mse": [floor, floor + 1],
    }[rule]
    matches = [scales == np.where(amax > 0, np.clip(each, -127, 125), -127) for each in expected]
    assert np.logical_or.reduce(matches).all()


@given(values=matrices)
def test_mse_is_never_worse_than_ocp(values: np.ndarray) -> None:
    def squared_errors(rule: ScaleRule) -> np.ndarray:
        restored = dequantize_mxfp4(*quantize_mxfp4(values, rule))[:, : values.shape[1]].astype(np.float64)
        difference = np.zeros((len(values), -(-values.shape[1] // 32) * 32))
        difference[:, : values.shape[1]] = restored - values
        largest = amax_of(values)[:, :, None]
        return ((difference.reshape(len(values), -1, 32) / np.where(largest > 0, largest, 1)) ** 2).sum(axis=-1)

    assert (squared_errors("mse") <= squared_errors("ocp") * (1 + 1e-12)).all()


def test_mse_is_better_than_ocp_on_gaussian_weights() -> None:
    values = gaussian(64, 512)
    errors = {rule: ((dequantize_mxfp4(*quantize_mxfp4(values, rule)) - values) ** 2).sum() for rule in SCALE_RULES}
    assert errors["mse"] < 0.98 * errors["ocp"]


@every_rule
def test_a_block_of_zeros_is_all_zero_bytes_whatever_their_signs(rule: ScaleRule) -> None:
    values = np.zeros((2, 64), np.float32)
    values[0, :32:2] = -0.0
    values[1, 40] = 1
    codes, scales = quantize_mxfp4(values, rule)
    assert not codes[0].any()
    assert scales[0].tolist() == [0, 0]
    assert scales[1, 1] > 0


def test_the_sign_of_a_zero_among_numbers_is_kept_but_under_ggml() -> None:
    values = np.array([[-0.0, 1.0, 0.0]], np.float32)
    assert quantize_mxfp4(values, "ocp")[0][0, :3].tolist() == [8, 6, 0]
    assert quantize_mxfp4(values, "ggml")[0][0, :3].tolist() == [0, 6, 0]


@every_rule
def test_the_largest_weights_stay_finite(rule: ScaleRule) -> None:
    values = np.full((1, 32), np.finfo(np.float32).max)
    codes, scales = quantize_mxfp4(values, rule)
    assert scales.tolist() == [[125 + 127]]
    assert dequantize_mxfp4(codes, scales).tolist() == [[6 * 2.0**125] * 32]


def test_all_codes_under_all_scales_decode_exactly() -> None:
    codes = np.tile(np.arange(32, dtype=np.uint8) % 16, (255, 1))
    scales = np.arange(255, dtype=np.uint8)[:, None]
    values = dequantize_mxfp4(codes, scales)
    expected = VALUES[codes].astype(np.float64) * 2.0 ** (scales.astype(np.float64) - 127)
    representable = np.abs(expected) < 2.0**128
    assert (values.astype(np.float64) == expected)[representable].all()
    assert np.isinf(values[~representable]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_an_error_that_names_the_first_index(value: float) -> None:
    values = np.zeros((4, 50), np.float32)
    values[2, 33] = values[3, 0] = value
    with pytest.raises(CodecError, match=r"^value at index \(2, 33\) is -?(nan|inf); MX formats need finite values\.$"):
        quantize_mxfp4(values)


def test_an_unknown_scale_rule_is_an_error_that_lists_the_known_ones() -> None:
    message = r"^scale rule 'floor': unknown; one of ocp, even, ceil, ggml, mse is required\.$"
    with pytest.raises(CodecError, match=message):
        quantize_mxfp4(np.zeros((1, 32), np.float32), "floor")  # type: ignore[arg-type]
    assert get_args(ScaleRule) == SCALE_RULES


@pytest.mark.parametrize(("columns", "num_scales"), [(64, 1), (33, 1), (32, 2)])
def test_codes_and_scales_that_do_not_belong_together_are_an_error(columns: int, num_scales: int) -> None:
    message = rf"^codes \(2, {columns}\) with scales \(2, {num_scales}\); one scale per 32 columns is required\.$"
    with pytest.raises(CodecError, match=message):
        dequantize_mxfp4(np.zeros((2, columns), np.uint8), np.zeros((2, num_scales), np.uint8))
