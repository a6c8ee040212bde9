"""mxconv against the golden vectors, and the golden vectors against their generator."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxconv.codecs import vnni8
from mxconv.codecs.bsfp.histogram import row_shifts_of
from mxconv.codecs.bsfp.packing import PackedBsfp, decode_bsfp, decode_bsfp_draft, encode_bsfp
from mxconv.codecs.bsfp.speq import decode_layout, encode_layout, paper_table
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import decode_e2m1, encode_e2m1, encode_e2m1_toward_zero
from mxconv.codecs.e8m0 import decode_e8m0
from mxconv.codecs.float16 import float_format
from mxconv.codecs.int8 import quantize_int8
from mxconv.codecs.mxfp4 import SCALE_RULES, quantize_mxfp4
from mxconv.codecs.mxint8 import mxint8_patterns, quantize_mxint8

VECTORS = Path(__file__).parents[2] / "formats" / "vectors"
NAMES = ("e2m1", "mxfp4", "mxint8", "bsfp", "vnni8", "int8", "ngram", "spire", "experts", "fp8")


def load(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text())


def patterns(text: str | list[str], num_digits: int) -> np.ndarray:
    """Hexadecimal numbers of 1, 2, 4 or 8 digits; a list of strings gives rows."""
    if isinstance(text, list):
        return np.stack([patterns(row, num_digits) for row in text])
    dtype = {1: np.uint8, 2: np.uint8, 4: np.uint16, 8: np.uint32}[num_digits]
    return np.array([int(text[i : i + num_digits], 16) for i in range(0, len(text), num_digits)], dtype)


def floats(text: str | list[str]) -> np.ndarray:
    return patterns(text, 8).view(np.float32)


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def test_the_vectors_are_what_their_generator_writes(tmp_path: Path) -> None:
    # -S leaves out site-packages: the generator runs on the standard library alone
    subprocess.run([sys.executable, "-S", "-B", VECTORS / "generate.py", tmp_path], check=True)
    assert sorted(path.stem for path in tmp_path.iterdir()) == sorted(NAMES)
    for name in NAMES:
        fresh = (tmp_path / f"{name}.json").read_bytes()
        assert fresh == (VECTORS / f"{name}.json").read_bytes(), f"{name}.json is stale: run `make vectors`"
        assert len(fresh) < 200_000


def test_the_worked_examples_of_the_formats_are_vectors() -> None:
    def spaced(text: str) -> str:
        return " ".join(text[i : i + 2] for i in range(0, len(text), 2))

    texts = {name: (VECTORS.parent / f"{name}.md").read_text() for name in ("mxfp4", "mxint8", "bsfp", "vnni8")}
    block = next(case for case in load("mxfp4")["blocks"] if case["name"] == "amax 7.5")
    for rule in SCALE_RULES:
        line = f"{rule:<6} {block[rule]['scale']}     {' '.join(block[rule]['codes'][:3])} "
        assert line in texts["mxfp4"], line
    eight = next(case for case in load("mxint8")["blocks"] if case["name"] == "amax 1.5")
    shown = " ".join(f"{element & 0xFF:02x}" for element in eight["elements"][:5])
    assert f"scale     {eight['scale']} " in texts["mxint8"]
    assert f"elements  {shown} " in texts["mxint8"]
    matrix = next(case for case in load("bsfp")["matrices"] if case["name"] == "escapes below and above")
    for found in (matrix["codes"][:8], matrix["residual_low"][:16], matrix["escape_high"]):
        assert spaced(found) in texts["bsfp"], found
    for number in (matrix["scales"][:4], *(f"{start:x}" for start in matrix["table"]["starts"][0])):
        assert number in texts["bsfp"], number
    tile = load("vnni8")["cases"][0]
    for found in (tile["nibbles_packed"][:8], tile["nibbles_packed"][8:16], tile["bits_packed"][:2]):
        assert f"-> {spaced(found)}" in texts["vnni8"], found


def test_e2m1_and_e8m0_vectors() -> None:
    vectors = load("e2m1")
    assert same_bits(decode_e2m1(np.arange(16, dtype=np.uint8)), floats(vectors["values_of_codes"]))
    assert same_bits(decode_e8m0(np.arange(255, dtype=np.uint8)), floats(vectors["values_of_e8m0"]))
    values = floats(vectors["encode"]["values"])
    assert same_bits(encode_e2m1(values), patterns(vectors["encode"]["ties_to_even"], 1))
    assert same_bits(encode_e2m1_toward_zero(values), patterns(vectors["encode"]["ties_toward_zero"], 1))


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_mxfp4_blocks(rule: Any) -> None:
    for case in load("mxfp4")["blocks"]:
        codes, scales = quantize_mxfp4(floats(case["values"])[None], rule)
        assert same_bits(scales[0], patterns(case[rule]["scale"], 2)), case["name"]
        assert same_bits(codes[0], patterns(case[rule]["codes"], 1)), case["name"]


def test_mxfp4_matrices_as_stored() -> None:
    for case in load("mxfp4")["matrices"]:
        values = floats(case["values"])
        assert values.shape == (case["rows"], case["columns"])
        codes, scales = quantize_mxfp4(vnni8.pad(values, 16, 32), case["scale_rule"])
        assert vnni8.pack_nibbles(codes).tobytes().hex() == case["codes"]
        assert vnni8.pack_scales(scales).tobytes().hex() == case["scales"]


def test_mxint8_blocks() -> None:
    for case in load("mxint8")["blocks"]:
        elements, scales = quantize_mxint8(floats(case["values"])[None])
        assert same_bits(scales[0], patterns(case["scale"], 2)), case["name"]
        assert elements[0].tolist() == case["elements"], case["name"]
        assert same_bits(mxint8_patterns(elements, scales)[0], patterns(case["bf16"], 4)), case["name"]


def test_mxint8_matrices_as_stored() -> None:
    for case in load("mxint8")["matrices"]:
        values = floats(case["values"])
        assert values.shape == (case["rows"], case["columns"])
        elements, scales = quantize_mxint8(vnni8.pad(values, 16, 32))
        assert vnni8.pack_quads(elements).tobytes().hex() == case["elements"]
        assert vnni8.pack_scales(scales).tobytes().hex() == case["scales"]


def table_of(fields: dict[str, Any]) -> SegmentTable:
    starts = tuple(tuple(row) for row in fields["starts"])
    levels = tuple(fields["levels"])
    return SegmentTable(float_format(fields["dtype"]), fields["residual_bits"], starts, levels, fields["kind"])


def bsfp_cases() -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in load("bsfp")["matrices"]]


@pytest.mark.parametrize("case", bsfp_cases())
def test_bsfp_encodes_to_the_vector(case: dict[str, Any]) -> None:
    weights, rows = patterns(case["patterns"], 4), case["rows"]
    shifts = None if case["row_shifts"] is None else np.array(case["row_shifts"], np.int8)
    packed = encode_bsfp(weights, table_of(case["table"]), None if shifts is None else shifts[:rows])
    for name in ("codes", "residual_low", "residual_high", "escape_high"):
        assert getattr(packed, name).tobytes().hex() == case[name], name
    assert same_bits(packed.scales.ravel(), patterns(case["scales"], 4))
    assert (packed.row_shifts is None) == (shifts is None)
    if shifts is not None:
        assert same_bits(packed.row_shifts, shifts)  # type: ignore[arg-type]
    assert packed.escape_counts.ravel().tolist() == case["escape_counts"]
    assert packed.escape_positions.tolist() == case["escape_positions"]
    per_row_tile = packed.escape_counts.astype(np.int64).sum(axis=1)
    assert [0, *np.cumsum(per_row_tile).tolist()] == case["escape_offsets"]


@pytest.mark.parametrize("case", bsfp_cases())
def test_bsfp_decodes_from_the_vector(case: dict[str, Any]) -> None:
    """The arrays come from the vector alone: our encoder has no part in it."""
    shape = (case["rows"], case["columns"])
    row_tiles, column_tiles = -(-shape[0] // 16), -(-shape[1] // 32) * 4
    packed = PackedBsfp(
        codes=patterns(case["codes"], 2).reshape(row_tiles, column_tiles, 64),
        residual_low=patterns(case["residual_low"], 2).reshape(row_tiles, column_tiles, 128),
        residual_high=patterns(case["residual_high"], 2).reshape(
            row_tiles, column_tiles, case["table"]["residual_bits"] - 8, 16
        ),
        scales=patterns(case["scales"], 4).reshape(row_tiles, -(-shape[1] // 128), 16),
        row_shifts=None if case["row_shifts"] is None else np.array(case["row_shifts"], np.int8),
        escape_counts=np.array(case["escape_counts"], np.uint8).reshape(row_tiles, column_tiles),
        escape_positions=np.array(case["escape_positions"], np.uint8),
        escape_high=patterns(case["escape_high"], 2),
    )
    table = table_of(case["table"])
    assert same_bits(decode_bsfp(packed, table, shape), patterns(case["patterns"], 4))
    assert same_bits(decode_bsfp_draft(packed, table, shape), floats(case["draft"]))


def test_the_bsfp_vectors_cover_escapes_shifts_and_both_tables() -> None:
    cases = load("bsfp")["matrices"]
    assert {case["table"]["kind"] for case in cases} == {"fitted", "paper"}
    shifts = [shift for case in cases for shift in case["row_shifts"] or []]
    assert min(shifts) < 0 < max(shifts)
    assert sum(bool(case["escape_positions"]) for case in cases) >= 5
    assert {case["table"]["residual_bits"] for case in cases} == {8, 9, 10, 11, 12}
    for dtype in ("BF16", "F16"):
        assert table_of(next(c["table"] for c in cases if c["name"] == f"paper table, {dtype}")) == paper_table(
            float_format(dtype)
        )


@pytest.mark.parametrize("index", [0, 1])
def test_row_shift_vectors(index: int) -> None:
    case = load("bsfp")["row_shifts"][index]
    for row, shift in zip(case["patterns"], case["row_shifts"], strict=True):
        assert row_shifts_of(patterns(row, 4)[None], float_format(case["dtype"])).tolist() == [shift]


@pytest.mark.parametrize("index", [0, 1])
def test_speq_layout_vectors(index: int) -> None:
    case = load("bsfp")["speq"][index]
    kind, weights = float_format(case["dtype"]), patterns(case["patterns"], 4)
    wq, wr = encode_layout(weights, kind)
    assert same_bits(wq, patterns(case["wq"], 1))
    assert wr.tolist() == [int(case["wr"][i : i + 3], 16) for i in range(0, len(case["wr"]), 3)]
    assert same_bits(decode_layout(wq, wr, kind), weights)


def test_vnni8_vectors() -> None:
    for case in load("vnni8")["cases"]:
        for part, digits in (("nibbles", 1), ("bytes", 2), ("bits", 1), ("scales", 4)):
            matrix = patterns(case[part], digits)
            packed = getattr(vnni8, f"pack_{part}")(matrix)
            stored = patterns(case[f"{part}_packed"], 4 if part == "scales" else 2)
            assert same_bits(packed.ravel(), stored), part
            assert same_bits(getattr(vnni8, f"unpack_{part}")(stored.reshape(packed.shape)), matrix), part
        values = patterns(case["bytes"], 2)
        quads = patterns(case["quads_packed"], 2)
        assert same_bits(vnni8.pack_quads(values).ravel(), quads)
        assert same_bits(vnni8.unpack_quads(quads.reshape(len(values) // 16, -1, 64)), values)


def test_int8_vectors() -> None:
    for case in load("int8")["cases"]:
        codes, scales = quantize_int8(floats(case["values"])[None])
        assert codes[0].tolist() == case["codes"], case["name"]
        assert same_bits(scales[0], floats(case["scale"])), case["name"]
