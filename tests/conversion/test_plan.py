"""Options; which tensor becomes what and why; what a reading pass decides; names of files and levels."""

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama
from packages import quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.conversion.plan import is_tied, plan_tensors
from mxconv.conversion.survey import Survey, survey_tensor
from mxconv.errors import CheckpointError, MxconvError
from mxconv.verify import verify


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "int4"}, "--codec: 'int4'; one of mxfp4, bsfp is required."),
        ({"lm_head": "drop"}, "--lm-head: 'drop'; one of int8, exact, quantize, keep is required."),
        ({"codec": "bsfp", "residual_bits": 7}, "--residual-bits: 7; one of 8, 9, 10, 11, 12 is required."),
        ({"max_shard_bytes": 0}, "--max-shard-bytes: 0; at least 1 is required."),
        ({"num_threads": 0}, "--threads: 0; at least 1 is required."),
        ({"calibration_tokens": 3}, "--calibration-tokens: 3; at least 256 is required."),
        ({"codec": "bsfp", "scale_rule": "mse"}, "--scale-rule: 'mse' with --codec bsfp; only mxfp4 has this option. "),
        ({"codec": "bsfp", "target": "reference"}, "--target: 'reference' with --codec bsfp; only mxfp4 has"),
        ({"codec": "bsfp", "lm_head": "int8"}, "--lm-head: 'int8' with --codec bsfp; only mxfp4 has this option. "),
        ({"lm_head": "exact"}, "only bsfp has this option. Leave it out, or use --codec bsfp."),
        ({"outliers": "rescale"}, "--outliers: 'rescale' with --codec mxfp4; only bsfp has this option. "),
        ({"segments": "paper"}, "--segments: 'paper' with --codec mxfp4; only bsfp has this option."),
        ({"residual_bits": 8}, "--residual-bits: 8 with --codec mxfp4; only bsfp has this option."),
        ({"codec": "bsfp", "segments": "paper", "residual_bits": 8}, "8 with --segments paper, whose width is fixed."),
        ({"calibrate": ("t",), "draft_weights": "f"}, "--calibrate: given with --draft-weights f; one of the two is"),
    ],
)
def test_an_option_out_of_range_or_of_the_other_codec_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MxconvError) as caught:
        QuantizeOptions(**options)
    assert message in str(caught.value)


def test_a_target_is_included_from_a_local_source_and_referenced_on_the_hub() -> None:
    assert QuantizeOptions().record(is_local=True).target == "include"
    assert QuantizeOptions().record(is_local=False).target == "reference"
    assert QuantizeOptions(target="include").record(is_local=False).target == "include"
    assert QuantizeOptions(codec="bsfp").record(is_local=False).target == "include"  # bit sharing: there is no other


BF16 = ml_dtypes.bfloat16


def plan(source: Path, **options: Any) -> dict[str, tuple[str, str]]:
    with open_checkpoint(source) as checkpoint:
        plans = plan_tensors(checkpoint, QuantizeOptions(**options))
    return {plan.name: (plan.codec, plan.reason) for plan in plans}


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


HALF, SINGLE, E4M3 = matrix(np.float16), matrix(np.float32), matrix(ml_dtypes.float8_e4m3fn)
# tensors and options; what is said; options with which it is planned, and as what
REFUSED: dict[str, tuple[dict[str, np.ndarray], dict[str, Any], str, dict[str, Any], tuple[str, str]]] = {
    "nothing": ({"w": HALF}, {"skip": ("*",)}, "none of its 1 tensors would be quantized; at least one matrix is req",
                {}, ("mxfp4", "matrix")),
    "F32": ({"w": SINGLE}, {}, "tensor w is F32; 16-bit weights are required. Give --dtype bf16 or --dtype fp16 to ro",
            {"dtype": "fp16"}, ("mxfp4", "matrix")),
    "F16 as BF16": ({"w": HALF}, {"dtype": "bf16"}, "tensor w is F16, but --dtype bf16 was given; --dtype rounds F32",
                    {"dtype": "fp16"}, ("mxfp4", "matrix")),
    "FP8": ({"a": HALF, "w": E4M3}, {}, "tensor w has dtype F8_E4M3, which is not supported; BF16 or F16 (or F32 with",
            {"skip": ("w",)}, ("keep", "--skip w")),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_planned_is_refused_with_the_way_out(case: str, tmp_path: Path) -> None:
    tensors, options, message, others, planned = REFUSED[case]
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    with pytest.raises(CheckpointError) as caught:
        plan(path, **options)
    assert str(caught.value).startswith(f"{path}: {message}")
    assert plan(path, **others)["w"] == planned


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mxfp4.safetensors", "has the name of a file that mxconv writes; another name is required. Rename it."),
        ("LICENSE:old", "path 'LICENSE:old'; a relative path of plain names joined by '/' is required. Rename it."),
    ],
)
def test_a_file_that_a_package_cannot_hold_is_refused_at_the_start(name: str, message: str, tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    (folder / "generation_config.json" if "LICENSE" in name else folder / "model.safetensors").rename(folder / name)
    before = (folder / name).read_bytes()
    with pytest.raises(CheckpointError) as caught:
        quantize(folder, tmp_path / "p")
    assert str(caught.value) == f"{folder / name}: {message}"
    assert (folder / name).read_bytes() == before


def test_where_the_weights_do_not_go_along_their_file_may_have_any_name(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    weights = (folder / "model.safetensors").rename(folder / "bsfp.safetensors")
    before = weights.read_bytes()
    quantize(folder, tmp_path / "p", codec="bsfp", segments="paper")
    assert verify(tmp_path / "p").lossless
    assert weights.read_bytes() == before


def test_shards_in_a_folder_of_their_own_keep_their_place(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", num_shards=2)
    (folder / "weights").mkdir()
    for shard in folder.glob("*.safetensors"):
        shard.rename(folder / "weights" / shard.name)
    index = folder / "model.safetensors.index.json"
    members = json.loads(index.read_text())
    members["weight_map"] = {name: f"weights/{shard}" for name, shard in members["weight_map"].items()}
    index.write_text(json.dumps(members))
    manifest = quantize(folder, tmp_path / "p")
    assert manifest.levels[0].files == [f"weights/model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    verification = verify(tmp_path / "p")
    assert verification.ok and verification.lossless


def test_levels_have_names_of_their_own(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    for place in ("a/tiny", "b/tiny", "mxfp4"):
        shutil.copytree(folder, tmp_path / place)
    drafts = tuple(f"checkpoint:{tmp_path / place}" for place in ("a/tiny", "b/tiny", "mxfp4"))
    levels = quantize(folder, tmp_path / "p", drafts=drafts).levels
    assert [level.name for level in levels] == ["target", "mxfp4", "tiny", "tiny-2", "mxfp4-2"]
    assert [level.path for level in levels[2:]] == ["drafts/1-tiny", "drafts/2-tiny-2", "drafts/3-mxfp4-2"]


def survey(folder: Path, weights: np.ndarray, **options: Any) -> Survey:
    path = write_safetensors(folder / "m.safetensors", {"w": weights})
    chosen = QuantizeOptions(**options)
    with open_checkpoint(path) as checkpoint:
        return survey_tensor(plan_tensors(checkpoint, chosen)[0], chosen)
