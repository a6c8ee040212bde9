from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import is_tied, plan_tensors
from mxconv.errors import CheckpointError

BF16 = ml_dtypes.bfloat16


def plan(source: Path, **options: Any) -> dict[str, tuple[str, str]]:
    with open_checkpoint(source) as checkpoint:
        plans = plan_tensors(checkpoint, QuantizeOptions(**options))
    return {plan.name: (plan.codec, plan.reason) for plan in plans}


def error_of(source: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        plan(source, **options)
    return str(caught.value)


def matrix(dtype: Any = BF16, shape: tuple[int, ...] = (16, 32)) -> np.ndarray:
    return np.ones(shape, dtype)


def test_every_tensor_has_a_codec_and_a_reason(tmp_path: Path) -> None:
    tensors = {
        "model.embed_tokens.weight": matrix(),
        "model.layers.0.mlp.up_proj.weight": matrix(),
        "model.layers.0.mlp.gate.weight": matrix(),
        "model.layers.0.q_norm.weight": matrix(shape=(32,)),
        "lm_head.weight": matrix(),
        "conv.weight": matrix(shape=(2, 3, 4)),
        "empty.weight": matrix(shape=(0, 4)),
        "scalar": matrix(shape=()),
        "table": matrix(np.int64),
        "mask": matrix(np.bool_),
    }
    path = write_safetensors(tmp_path / "model.safetensors", tensors)
    assert plan(path, codec="bsfp") == {
        "model.embed_tokens.weight": ("keep", "embeddings"),
        "model.layers.0.mlp.up_proj.weight": ("bsfp", "matrix"),
        "model.layers.0.mlp.gate.weight": ("keep", "expert router"),
        "model.layers.0.q_norm.weight": ("keep", "not a matrix"),
        "lm_head.weight": ("bsfp", "output head"),
        "conv.weight": ("keep", "not a matrix"),
        "empty.weight": ("keep", "empty"),
        "scalar": ("keep", "not a matrix"),
        "table": ("keep", "integers"),
        "mask": ("keep", "integers"),
    }


@pytest.mark.parametrize(
    ("tied", "lm_head", "embedding", "head"),
    [
        (False, None, ("keep", "embeddings"), ("mxint8", "output head")),
        (False, "quantize", ("keep", "embeddings"), ("mxfp4", "output head")),
        (False, "keep", ("keep", "embeddings"), ("keep", "--lm-head keep")),
        (True, None, ("mxint8", "output head, tied to the embeddings"), None),
        (True, "quantize", ("mxfp4", "output head, tied to the embeddings"), None),
        (True, "keep", ("keep", "embeddings"), None),
    ],
)
def test_the_output_head_has_8_bits_unless_told_otherwise_tied_or_not(
    tmp_path: Path, tied: bool, lm_head: str | None, embedding: tuple[str, str], head: tuple[str, str] | None
) -> None:
    plans = plan(write_tiny_llama(tmp_path / "m", tie_word_embeddings=tied), lm_head=lm_head)
    assert plans["model.embed_tokens.weight"] == embedding
    assert plans.get("lm_head.weight") == head


def test_tying_is_read_from_the_nested_text_config_and_loses_against_a_head_that_is_there() -> None:
    assert is_tied({"text_config": {"tie_word_embeddings": True}}, {})
    assert not is_tied({"tie_word_embeddings": True}, {"lm_head.weight": None})
    assert not is_tied({"text_config": None}, {})
    assert not is_tied(None, {})


def test_skip_takes_shell_patterns_and_the_first_that_matches_is_the_reason(tmp_path: Path) -> None:
    plans = plan(write_tiny_llama(tmp_path / "m"), skip=("*.0.*_proj.weight", "lm_head*"))
    assert plans["model.layers.0.mlp.up_proj.weight"] == ("keep", "--skip *.0.*_proj.weight")
    assert plans["model.layers.1.mlp.up_proj.weight"] == ("mxfp4", "matrix")
    assert plans["lm_head.weight"] == ("keep", "--skip lm_head*")


def test_a_checkpoint_of_which_nothing_would_be_quantized_is_refused(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    assert (
        error_of(folder, skip=("*",)) == f"{folder}: none of its 21 tensors would be quantized; "
        "at least one matrix is required. Check the checkpoint and --skip."
    )


def test_f32_needs_a_dtype_and_says_so(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": matrix(np.float32), "b": matrix(np.float32, (3,))})
    assert error_of(path) == (
        f"{path}: tensor w is F32; 16-bit weights are required. "
        "Give --dtype bf16 or --dtype fp16 to round it; the choice is recorded."
    )
    assert plan(path, dtype="fp16") == {"w": ("mxfp4", "matrix"), "b": ("keep", "not a matrix")}


def test_a_dtype_does_not_change_16_bit_weights(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"w": matrix(np.float16)})
    assert error_of(path, dtype="bf16") == (
        f"{path}: tensor w is F16, but --dtype bf16 was given; --dtype rounds F32 only, 16-bit weights stay as they "
        "are. Leave it out."
    )
    assert plan(path, dtype="fp16") == {"w": ("mxfp4", "matrix")}


def test_other_dtypes_are_named_unless_they_are_skipped(tmp_path: Path) -> None:
    tensors = {"w": matrix(), "eight": matrix(ml_dtypes.float8_e4m3fn), "wide": matrix(np.float64)}
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    assert error_of(path, skip=("wide",)) == (
        f"{path}: tensor eight has dtype F8_E4M3, which is not supported; BF16 or F16 (or F32 with --dtype) is "
        "required. Export the model in 16 bits, or keep the tensor with --skip 'eight'."
    )
    assert plan(path, skip=("wide", "eight"))["eight"] == ("keep", "--skip eight")
