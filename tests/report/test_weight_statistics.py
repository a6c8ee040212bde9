"""The figures against an independent computation: safetensors' reader, ml_dtypes' casts, and loops in float64."""

from collections import Counter
from collections.abc import Callable
from math import log10
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors
from hypothesis import given
from hypothesis import strategies as st
from oracles import e2m1_by_ml_dtypes, e2m1_values_by_ml_dtypes

from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.report.exponents import MARGIN, ExponentCounts
from mxconv.report.inspection import Inspection
from mxconv.report.weight_statistics import merge

Inspect = Callable[..., Inspection]
PAPER_LEVEL = [2, 2, 2, 2, 6, 6, 6, 6, 8, 9, 10, 11, 12, 12, 14, 14]  # by exponent field


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """With the safetensors library, which gives ml_dtypes' bfloat16."""
    return safetensors.numpy.load_file(folder / "model.safetensors")


def sqnr(weights: np.ndarray, draft: np.ndarray) -> float:
    return 10 * log10((weights**2).sum() / ((weights - draft) ** 2).sum())


def mxfp4(weights: np.ndarray) -> np.ndarray:
    """Block by block, by the text of the OCP specification."""
    out = np.zeros_like(weights)
    for row in range(weights.shape[0]):
        for start in range(0, weights.shape[1], 32):
            block = weights[row, start : start + 32]
            amax = np.abs(block).max()
            if amax:
                scale = 2.0 ** (np.floor(np.log2(amax)) - 2)
                codes = e2m1_by_ml_dtypes((block / scale).astype(np.float32))
                out[row, start : start + 32] = e2m1_values_by_ml_dtypes(codes) * scale
    return out


def with_group_scales(weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Signed levels times a least-squares scale a group of 128, rounded to BF16."""
    out = np.zeros_like(weights)
    for row in range(weights.shape[0]):
        for start in range(0, weights.shape[1], 128):
            w, q = weights[row, start : start + 128], levels[row, start : start + 128]
            scale = (w * q).sum() / (q * q).sum() if q.any() else 0.0
            out[row, start : start + 128] = q * float(ml_dtypes.bfloat16(np.float32(scale)))
    return out


def paper_draft(tensor: np.ndarray) -> np.ndarray:
    weights = tensor.astype(np.float64)
    is_bf16 = tensor.dtype == ml_dtypes.bfloat16
    fields = (tensor.view(np.uint16) & 0x7FFF) >> (7 if is_bf16 else 10)
    fields = np.clip(fields.astype(int) - (112 if is_bf16 else 0), 0, 15)  # below and above: the nearest code
    levels = np.vectorize(lambda field: 2.0 ** (PAPER_LEVEL[field] - 15))(fields)
    return with_group_scales(weights, np.copysign(levels, weights))


def test_exponents_are_those_of_the_weights(model: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(model)
    tensors = read_tensors(model)
    assert [tensor.name for tensor in inspection.tensors] == sorted(tensors)
    for found in (tensor.to_json() for tensor in inspection.tensors):
        tensor = tensors[found["name"]]
        is_bf16 = tensor.dtype == ml_dtypes.bfloat16
        fields = (tensor.view(np.uint16) & 0x7FFF) >> (7 if is_bf16 else 10)
        expected = {str(field): int(count) for field, count in zip(*np.unique(fields, return_counts=True), strict=True)}
        assert found["exponent_histogram"] == expected
        assert found["max_abs"] == float(np.abs(tensor).max())
        assert found["num_zero"] == int((tensor == 0).sum())
        assert found["num_nonfinite"] == 0
        assert found["shape"] == list(tensor.shape)
        assert found["dtype"] == ("BF16" if is_bf16 else "F16")
        low, high = found["window"]
        inside = (fields >= low) & (fields <= high)
        assert found["num_outside_window"] == int((~inside & (tensor != 0)).sum())
    assert sum(inspection.total.to_json()["exponent_histogram"].values()) == sum(t.size for t in tensors.values())


def test_decibels_are_those_of_an_independent_computation(model: Path, inspect_path: Inspect) -> None:
    inspection = inspect_path(model, tensor_glob="model.layers.1.*proj.weight")
    tensors = read_tensors(model)
    assert len(inspection.tensors) == 7
    for found in inspection.tensors:
        tensor = tensors[found.name]
        weights = tensor.astype(np.float64)
        assert found.mxfp4_sqnr_db == pytest.approx(sqnr(weights, mxfp4(weights)), abs=1e-9)
        assert found.bsfp_paper_draft_sqnr_db == pytest.approx(sqnr(weights, paper_draft(tensor)), abs=0.01)


def test_fitted_draft_follows_from_its_table(tmp_path: Path, inspect_path: Inspect) -> None:
    # no weight so large that its group counts as clipped
    weights = (np.random.default_rng(0).standard_normal((300, 40)).clip(-3, 3) * 0.02).astype(ml_dtypes.bfloat16)
    path = write_safetensors(tmp_path / "model.safetensors", {"w": weights})
    histogram = PatternHistogram(BF16)
    histogram.add(weights.view(np.uint16))
    fitted = fit_table(histogram)
    assert not fitted.table.has_row_shifts
    starts = np.array(fitted.table.starts[0])
    magnitudes = (weights.view(np.uint16) & 0x7FFF).astype(int)
    codes = np.maximum(np.searchsorted(starts, magnitudes, side="right") - 1, 0)
    values = weights.astype(np.float64)
    levels = np.copysign(np.array(fitted.table.levels)[codes], values)
    (found,) = inspect_path(path).tensors
    assert found.bsfp_draft_sqnr_db == pytest.approx(sqnr(values, with_group_scales(values, levels)), abs=1e-9)
    offsets = magnitudes - starts[codes]
    assert found.to_json()["bsfp_num_escapes"] == ((offsets < 0) | (offsets >= 256)).sum()


@pytest.mark.parametrize("segments", ["fitted", "paper"])
def test_bits_are_those_of_the_package_on_disk(
    segments: str, model: Path, inspect_path: Inspect, package: Callable[..., Path]
) -> None:
    converted = package(model, codec="bsfp", segments=segments)
    widths = {"U8": 1, "I8": 1, "BF16": 2, "F16": 2, "I64": 8}
    num_bytes: Counter[str] = Counter()
    with safetensors.safe_open(converted / "bsfp.safetensors", "numpy") as file:
        for name in file.keys():  # noqa: SIM118  # the file is no dict
            array = file.get_slice(name)
            num_bytes[name.rpartition(".")[0]] += widths[array.get_dtype()] * int(np.prod(array.get_shape()))
    key = "bsfp_bits_per_weight" if segments == "fitted" else "bsfp_paper_bits_per_weight"
    total_bytes = total_weights = 0
    inspection = inspect_path(model)
    for found in (tensor.to_json() for tensor in inspection.tensors if tensor.num_quantized):
        assert found[key] == 8 * num_bytes[found["name"]] / found["num_weights"]
        total_bytes += num_bytes[found["name"]]
        total_weights += found["num_weights"]
    assert inspection.total.to_json()[key] == 8 * total_bytes / total_weights


def test_what_cannot_be_counted_is_null_and_says_why(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    found = {tensor.name: tensor.to_json() for tensor in inspect_path(odd_checkpoint).tensors}
    drafts = ("bsfp_bits_per_weight", "bsfp_draft_sqnr_db", "bsfp_paper_draft_sqnr_db", "mxfp4_sqnr_db")
    for name in ("positions", "single.weight"):
        assert found[name]["exponent_histogram"] is None
        assert found[name]["max_abs"] is None
    assert found["single.weight"]["note"] == "F32: quantize needs --dtype bf16 or fp16"
    assert found["positions"]["note"] == "I64: not a 16-bit float"
    for name in ("positions", "single.weight", "experts", "scalar", "empty", "nan.weight"):
        assert [found[name][key] for key in drafts] == [None] * 4
    assert found["experts"]["exponent_histogram"] == {"127": 24}
    assert found["scalar"]["exponent_histogram"] == {"128": 1}
    assert found["empty"]["exponent_histogram"] == {}
    assert found["nan.weight"]["num_nonfinite"] == 2
    assert found["nan.weight"]["note"] == "non-finite weights: quantize needs --on-nonfinite keep"
    assert found["nan.weight"]["max_abs"] < 1
    assert found["zeros.weight"]["num_zero"] == 800
    assert found["zeros.weight"]["window"] is None
    assert found["zeros.weight"]["bsfp_draft_sqnr_db"] is None
    assert found["zeros.weight"]["bsfp_bits_per_weight"] > 12


def test_bits_and_decibels_of_a_sum_count_what_is_quantized(tiny_llama: Path, inspect_path: Inspect) -> None:
    tensors = inspect_path(tiny_llama).tensors
    total = merge("all", tensors).to_json()
    quantized = [tensor for tensor in tensors if tensor.num_quantized]
    assert total["num_quantized"] == len(quantized) == 8
    assert total["num_draft_weights"] == sum(tensor.num_weights for tensor in quantized)
    signal = sum(tensor.drafts.signal for tensor in quantized if tensor.drafts)
    error = sum(tensor.drafts.mxfp4_error for tensor in quantized if tensor.drafts)
    assert total["mxfp4_sqnr_db"] == pytest.approx(10 * log10(signal / error))
    embeddings = [tensor for tensor in tensors if tensor.name == "model.embed_tokens.weight"]
    assert merge("kept", embeddings).mxfp4_sqnr_db == embeddings[0].mxfp4_sqnr_db is not None


def test_both_16_bit_formats_together_have_no_histogram(odd_checkpoint: Path, inspect_path: Inspect) -> None:
    total = inspect_path(odd_checkpoint).total
    assert total.exponents is None
    assert total.note == "BF16 and F16 tensors: their exponent fields differ; choose one kind with --tensor."
    assert total.to_json()["mxfp4_sqnr_db"] is not None


def counts_of(float_format: FloatFormat, patterns: np.ndarray) -> ExponentCounts:
    magnitudes = np.asarray(patterns, np.uint16) & 0x7FFF
    return ExponentCounts.from_patterns(float_format, np.bincount(magnitudes, minlength=32768).astype(np.int64))


@pytest.mark.parametrize("float_format", [BF16, FP16])
def test_every_pattern_is_counted_in_its_field(float_format: FloatFormat) -> None:
    found = counts_of(float_format, np.arange(65536))
    per_field = 2 * float_format.patterns_per_octave
    assert set(found.fields.tolist()) == {per_field}
    assert len(found.fields) == 2**float_format.exponent_bits
    assert found.num_weights == 65536
    assert found.num_zero == 2
    assert found.num_nonfinite == per_field
    assert found.nonzero[0] == per_field - 2  # subnormals
    assert found.max_abs == float(
        np.finfo(float_format.numpy_dtype).max if float_format == FP16 else 2.0**127 * 1.9921875
    )


@given(st.sampled_from([BF16, FP16]), st.lists(st.integers(0, 65535), max_size=60))
def test_the_window_is_the_highest_of_the_best_ones(float_format: FloatFormat, patterns: list[int]) -> None:
    found = counts_of(float_format, np.array(patterns, np.uint16))
    values = float_format.decode(np.array(patterns, np.uint16))
    weights = [
        (pattern & 0x7FFF) >> float_format.mantissa_bits
        for pattern, value in zip(patterns, values, strict=True)
        if np.isfinite(value) and value != 0
    ]
    last = 2**float_format.exponent_bits - 2
    held = {low: sum(low <= field <= low + 15 for field in weights) for low in range(last - 14)}
    if not weights:
        assert found.window is None
        assert found.num_outside_window == 0
        return
    best = max(low for low, count in held.items() if count == max(held.values()))
    assert found.window == (best, best + 15)
    assert found.num_outside_window == len(weights) - held[best]


@given(st.dictionaries(st.integers(0, 254), st.integers(1, 10**9), min_size=1, max_size=60))
def test_bars_hold_every_weight_once_and_the_window_field_by_field(counts: dict[int, int]) -> None:
    fields = np.zeros(256, np.int64)
    for field, count in counts.items():
        fields[field] = count
    found = ExponentCounts(BF16, fields, 0, 1.0)
    assert found.window is not None
    low, high = found.window
    ranges = found.ranges
    assert sum(int(fields[first : last + 1].sum()) for first, last in ranges) == sum(counts.values())
    assert [first for first, _ in ranges[1:]] == [last + 1 for _, last in ranges[:-1]]
    assert [(field, field) for field in range(low, high + 1)] == [pair for pair in ranges if low <= pair[0] <= high]
    assert len(ranges) <= 16 + 2 * (MARGIN + 1)


def test_the_scale_is_linear_only_where_small_bars_stay_visible() -> None:
    for largest, scale in ((40, "linear"), (41, "log")):
        fields = np.zeros(256, np.int64)
        fields[[100, 101]] = largest, 1
        assert ExponentCounts(BF16, fields, 0, 1.0).scale == scale
