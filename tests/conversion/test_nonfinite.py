"""Weights that are not finite: named where the source has them, and kept bit for bit where that is asked for."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from packages import compare, quantize

from mxconv.errors import CheckpointError

BF16, F16, NAN, INF = ml_dtypes.bfloat16, np.float16, np.nan, np.inf
FIRST, SECOND = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"
NORM, EMBEDDING, HEAD = "model.norm.weight", "model.embed_tokens.weight", "lm_head.weight"


def spoiled(shape: tuple[int, ...], dtype: Any, value: float = 0, *places: tuple[int, ...]) -> np.ndarray:
    """Gaussian weights, of which some have this value."""
    array = (np.random.default_rng(0).standard_normal(shape) * 0.02).astype(dtype)
    for place in places:
        array[place] = value
    return array


def fp8(code: int, scale: float) -> dict[str, np.ndarray]:
    codes = np.zeros((130, 40), np.uint8)
    codes[129, 7] = code
    return {
        "a.weight": codes.view(ml_dtypes.float8_e4m3fn),
        "a.weight_scale_inv": np.full((2, 1), scale, np.float32),
    }


# tensors, what is said of the first that is not finite, options
CASES: dict[str, tuple[dict[str, np.ndarray], str, dict[str, Any]]] = {
    "BF16": ({"w": spoiled((40, 300), BF16, NAN, (37, 211), (39, 5))}, "w holds nan at index [37, 211]", {}),
    "minus infinity": ({"w": spoiled((40, 300), BF16, -INF, (37, 211))}, "w holds -inf at index [37, 211]", {}),
    "F16": ({"w": spoiled((40, 300), F16, INF, (37, 211))}, "w holds inf at index [37, 211]", {}),
    "a later slice": ({"w": spoiled((5000, 512), F16, NAN, (4711, 3))}, "w holds nan at index [4711, 3]", {}),
    "several": (
        {f"w{n}": spoiled((64, 64), F16, INF, *[(5, 6)] * (n in (3, 4, 7))) for n in range(9)},
        "w3 holds inf at index [5, 6]",
        {},
    ),
    "after rounding": (
        {"w": spoiled((16, 32), np.float32, 70000, (1, 2))},
        "w holds inf at index [1, 2] after rounding F32 to F16",
        {"dtype": "fp16"},
    ),
    "an expert": (
        {FIRST: spoiled((3, 48, 40), BF16, NAN, (2, 3, 7)), SECOND: spoiled((3, 40, 24), BF16)},
        f"{FIRST} holds nan at index [2, 3, 7]",
        {},
    ),
    "an expert, transposed": (
        {FIRST: spoiled((3, 40, 48), BF16, NAN, (2, 7, 3)), SECOND: spoiled((3, 24, 40), BF16)},
        f"{FIRST} holds nan at index [2, 7, 3]",
        {},
    ),
    "FP8": (fp8(0x7F, 1.0), "a.weight holds nan at index [129, 7]", {}),
    "FP8, too large a scale": (fp8(0x7E, 3e38), "a.weight holds inf at index [129, 7]", {}),
    "a norm": ({NORM: spoiled((64,), BF16, NAN, (5,))}, f"{NORM} holds nan at index [5]", {}),
    "embeddings": (
        {EMBEDDING: spoiled((96, 64), F16, -INF, (0, 5)), HEAD: spoiled((96, 64), F16)},
        f"{EMBEDDING} holds -inf at index [0, 5]",
        {},
    ),
}
# BSFP keeps FP8 as it is, and looks at none of it
CODECS = [(case, codec) for case in CASES for codec in ("mxfp4", "bsfp") if codec == "mxfp4" or "FP8" not in case]


@pytest.mark.parametrize(("case", "codec"), CODECS)
def test_the_weight_is_named_or_its_tensor_is_kept(tmp_path: Path, case: str, codec: str) -> None:
    tensors, message, options = CASES[case]
    plain = {"z.weight": spoiled((16, 32), BF16)}
    source = write_safetensors(tmp_path / "m" / "model.safetensors", tensors | plain)
    with pytest.raises(CheckpointError) as caught:
        quantize(source, tmp_path / "p", codec=codec, num_threads=3, **options)
    required = "finite weights are required. Use --on-nonfinite keep to "
    assert str(caught.value).startswith(f"{source}: tensor {message}; {required}")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    manifest = quantize(source, tmp_path / "p", codec=codec, on_nonfinite="keep", **options)
    record = next(record for record in manifest.tensors if record.name == message.split()[0])
    assert record.codec == "keep"
    assert (record.reason == "holds non-finite weights") == (record.name not in (NORM, EMBEDDING))
    quantize(source, tmp_path / "q", codec=codec, skip=tuple(tensors), **options)
    assert compare(tmp_path / "p", source).ok and compare(tmp_path / "q", source).ok
