"""Forged segment tables and planes: never a crash, never an allocation that a number in a file asked for.

Forgery makes all hashes true again, so that only the checks of structure and numbers are left.
"""

import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from forged_members import error_of, is_accepted, put
from packages import forge, patch_array, quantize

from mxconv.errors import PackageError
from mxconv.verify import verify


@pytest.fixture(scope="module")
def whole_planes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bsfp package of one matrix whose rows differ in scale, so that it has row shifts and escapes."""
    folder = tmp_path_factory.mktemp("planes")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 256)) * 2.0 ** -(np.arange(64) % 11)[:, None] * 0.1
    weights[:, ::16] *= 2.0**-9
    path = write_safetensors(folder / "w.safetensors", {"w": weights.astype(ml_dtypes.bfloat16)})
    segments = quantize(path, folder / "w", codec="bsfp").tensors[0].segments
    assert segments is not None and len(segments.starts) == 8 and segments.num_escapes > 300
    return folder / "w"


@pytest.fixture
def planes(whole_planes: Path, tmp_path: Path) -> Path:
    """A copy that the test may break."""
    return Path(shutil.copytree(whole_planes, tmp_path / "w"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("quantized.segments", None, "tensor w: codec bsfp without segments. Convert again."),
        ("quantized.segments.num_escapes", 2**62, "array w.escape_positions is U8 "),
        ("quantized.segments.num_escapes", 0, "array w.escape_positions is U8 "),
        ("quantized.segments.num_escapes", -1, "greater than or equal to 0"),
        ("quantized.segments.residual_bits", 10, "residual width 10; BF16 takes one of (8, 9)."),
        ("quantized.segments.residual_bits", 13, "less than or equal to 12"),
        ("quantized.segments.starts", [], "starts are no 1 x 8 or 8 x 8 table; one start a code is required."),
        ("quantized.segments.starts", [[]] * 8, "starts are no 1 x 8 or 8 x 8 table"),
        ("quantized.segments.starts", [[2**31] * 8] * 8, "start 2147483648; 0 to "),
        ("quantized.segments.starts", [[10**30] * 8] * 8, "so that each residual stays finite."),
        ("quantized.segments.starts", [[-1] * 8] * 8, "start -1; 0 to "),
        ("quantized.segments.starts", [[0] * 8] * 7 + [[0] * 7], "starts are no 1 x 8 or 8 x 8 table"),
        ("quantized.segments.starts", [list(range(8))] + [list(range(8, 0, -1))] * 7, "one order is required."),
        ("quantized.segments.starts", [list(range(8))], "row_shifts"),
        ("quantized.segments.levels", [1.0] * 7, "eight numbers from 0 to 65536 are required."),
        ("quantized.segments.levels", [1e300] * 8, "eight numbers from 0 to 65536 are required."),
        ("quantized.segments.rescale_factor", 0.0, "greater than or equal to "),
        ("quantized.segments.rescale_factor", 1e-45, "greater than or equal to "),
        ("quantized.segments.rescale_factor", 1.5, "less than or equal to 1"),
        ("quantized.dtype", "F16", "residual width 8; F16 takes one of (10, 11, 12)."),
    ],
)
@pytest.mark.usefixtures("is_frugal")
def test_a_forged_segment_table_is_refused_with_a_reason(planes: Path, path: str, value: object, message: str) -> None:
    forge(planes, put(path, value))
    if message == "row_shifts":  # one row of starts needs no shifts; what they would be then is simply not read
        assert not is_accepted(planes)
    else:
        assert message in error_of(planes)


@pytest.mark.usefixtures("is_frugal")
def test_row_shifts_out_of_the_finite_patterns_are_refused(planes: Path) -> None:
    patch_array(planes / "bsfp.safetensors", "w.row_shifts", 3, b"\x7f")  # 15 octaves up
    forge(planes, put("quantized.segments.starts", [[32000] * 8] * 8))
    assert error_of(planes) == (
        f"{planes}: tensor w: segment table: start {32000 + 15 * 128}; 0 to {0x7F80 - 256} is required, "
        "so that each residual stays finite."
    )


@pytest.mark.parametrize("factor", [2.0**-128, 0.5])
def test_a_forged_rescale_factor_raises_nothing_else(planes: Path, factor: float) -> None:
    forge(planes, put("quantized.segments.rescale_factor", factor))
    verification = verify(planes)
    assert not verification.lossless


@pytest.mark.parametrize(
    ("array", "offset", "content", "message"),
    [
        ("row_shifts", 3, b"\x7f", ""),
        ("row_shifts", 63, b"\x80", ""),
        ("escape_offsets", 8, (10**15).to_bytes(8, "little"), "they must agree."),
        ("escape_offsets", 0, (5).to_bytes(8, "little"), "they must agree."),
        ("escape_offsets", -8, (1 << 63).to_bytes(8, "little"), "they must agree."),
        ("escape_counts", 0, b"\xff" * 64, "they must agree."),
        ("escape_positions", 0, b"\x80", "escapes: position 128; 0 to 127 is required."),
        ("escape_positions", 0, b"\x7f" * 2, "escapes: a position occurs twice in a tile;"),
        ("escape_positions", 0, b"\x7f\x7e", "escapes: positions in a tile do not ascend, which is required."),
        ("escape_high", 0, b"\x00", ""),
        ("codes", 0, b"\x12", ""),
        ("residual_low", 0, b"\x12", ""),
    ],
)
@pytest.mark.usefixtures("is_frugal")
def test_forged_planes_are_a_mismatch_or_refused_with_a_reason(
    planes: Path, array: str, offset: int, content: bytes, message: str
) -> None:
    patch_array(planes / "bsfp.safetensors", f"w.{array}", offset, content)
    forge(planes)
    try:
        verification = verify(planes)
    except PackageError as error:
        assert message and message in str(error)
    else:
        assert not verification.ok
        assert message in verification.tensors[0].detail
        assert bool(message) == bool(verification.tensors[0].detail)
