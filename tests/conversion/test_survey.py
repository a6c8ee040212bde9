from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from packages import quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.bsfp.packing import encode_bsfp
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import plan_tensors
from mxconv.conversion.survey import Survey, survey_tensor
from mxconv.errors import CheckpointError

DTYPES = {"BF16": ml_dtypes.bfloat16, "F16": np.float16}


def survey(folder: Path, weights: np.ndarray, **options: Any) -> Survey:
    path = write_safetensors(folder / "m.safetensors", {"w": weights})
    chosen = QuantizeOptions(**options)
    with open_checkpoint(path) as checkpoint:
        return survey_tensor(plan_tensors(checkpoint, chosen)[0], chosen)


def gaussian(shape: tuple[int, int], dtype: Any, scale: float = 0.02) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(dtype)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
@pytest.mark.parametrize(("dtype", "weight"), [("BF16", np.nan), ("BF16", -np.inf), ("F16", np.inf)])
def test_a_nonfinite_weight_is_an_error_that_names_tensor_and_index(
    tmp_path: Path, codec: str, dtype: str, weight: float
) -> None:
    weights = gaussian((40, 300), DTYPES[dtype])
    weights[37, 211] = weights[39, 5] = weight
    with pytest.raises(CheckpointError) as caught:
        survey(tmp_path, weights, codec=codec)
    assert str(caught.value) == (
        f"{tmp_path}/m.safetensors: tensor w holds {weight} at index [37, 211]; finite weights are required. "
        "Use --on-nonfinite keep to leave this tensor in 16 bits."
    )


def test_a_weight_in_a_later_slice_is_found_at_its_own_index(tmp_path: Path) -> None:
    weights = np.zeros((5000, 512), np.float16)  # 2.5 slices
    weights[4711, 3] = np.nan
    with pytest.raises(CheckpointError, match=r"tensor w holds nan at index \[4711, 3\];"):
        survey(tmp_path, weights)


def test_a_weight_that_rounding_makes_infinite_is_named_as_such(tmp_path: Path) -> None:
    weights = np.zeros((16, 32), np.float32)
    weights[1, 2] = 70000
    with pytest.raises(CheckpointError, match=r"tensor w holds inf at index \[1, 2\] after rounding F32 to F16;"):
        survey(tmp_path, weights, dtype="fp16")
    assert survey(tmp_path, weights, dtype="bf16").plan.codec == "mxfp4"


@pytest.mark.parametrize("segments", ["fitted", "paper"])
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_the_histogram_tells_the_number_of_escapes_before_anything_is_encoded(
    tmp_path: Path, dtype: str, segments: str
) -> None:
    weights = gaussian((64, 257), DTYPES[dtype]) * (2.0 ** (np.arange(64) % 11 - 5))[:, None].astype(DTYPES[dtype])
    weights[3] = 0
    weights[:, 7] = 2.4062
    found = survey(tmp_path, weights.astype(DTYPES[dtype]), codec="bsfp", segments=segments)
    assert found.table is not None
    if not found.table.has_row_shifts:  # encode_tensor computes the shifts; test_convert.py sees those
        packed = encode_bsfp(weights.astype(DTYPES[dtype]).view(np.uint16), found.table)
        assert len(packed.escape_high) == found.num_escapes
    assert (found.num_escapes > 0) == (dtype == "BF16")  # at 10 residual bits and more F16 has room for all of these


def test_rescale_changes_only_tensors_beyond_2_and_takes_the_factor_of_speq(tmp_path: Path) -> None:
    weights = gaussian((16, 128), np.float16)
    assert survey(tmp_path, weights, codec="bsfp", outliers="rescale").rescale_factor == 1.0
    weights[0, 0] = -8
    assert survey(tmp_path, weights, codec="bsfp", outliers="rescale").rescale_factor == np.float32(1.999 / 8)
    assert survey(tmp_path, weights, codec="bsfp").rescale_factor == 1.0


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_the_first_tensor_with_a_nonfinite_weight_is_named_and_nothing_is_left(
    tmp_path: Path, num_threads: int
) -> None:
    tensors = {f"w{n}": np.zeros((64, 64), np.float16) for n in range(9)}
    for name in ("w3", "w4", "w7"):
        tensors[name][5, 6] = np.inf
    source = write_safetensors(tmp_path / "m.safetensors", tensors)
    with pytest.raises(CheckpointError, match=r"tensor w3 holds inf at index \[5, 6\]; finite weights are required"):
        quantize(source, tmp_path / "p", num_threads=num_threads)
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
