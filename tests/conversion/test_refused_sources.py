"""Checkpoints of other quantizers are refused by a tensor that shows it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_safetensors
from packages import quantize

from mxconv.errors import CheckpointError

LAYER = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize(
    ("tensors", "named", "quantizer"),
    [
        (
            {".g_idx": np.zeros(32, np.int32), ".qweight": np.zeros((4, 16), np.int32), ".scales": np.ones((1, 16))},
            ".qweight is I32 [4, 16]",
            "GPTQ or AWQ",
        ),
        ({".qzeros": np.zeros((1, 2), np.int32)}, ".qzeros is I32 [1, 2]", "GPTQ or AWQ"),
        (
            {".weight": np.zeros((256, 1), np.uint8), ".weight.absmax": np.zeros(8, np.float32)},
            ".weight.absmax is F32 [8]",
            "bitsandbytes",
        ),
        ({".weight": np.zeros((16, 32), np.int8), ".SCB": np.ones(16, np.float32)}, ".SCB is F32 [16]", "bitsandbytes"),
        ({".weight_packed": np.zeros((16, 4), np.int32)}, ".weight_packed is I32 [16, 4]", "compressed-tensors"),
    ],
)
def test_the_tensor_and_the_way_out_are_named(
    tmp_path: Path, tensors: dict[str, Any], named: str, quantizer: str
) -> None:
    others = {"lm_head.weight": np.ones((16, 32), np.float16)}
    path = write_safetensors(tmp_path / "m" / "model.safetensors", {LAYER + n: a for n, a in tensors.items()} | others)
    method = "gptq" if quantizer == "GPTQ or AWQ" else None
    config = {"quantization_config": {"quant_method": method}} if method else {}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError) as caught:
        quantize(tmp_path / "m", tmp_path / "p")
    assert str(caught.value) == (
        f"{path}: tensor {LAYER}{named} of {quantizer}{f' (quant_method {method})' if method else ''}; weights of 16 "
        "bits, FP8 with block scales or gpt-oss's MXFP4 are required. Convert the model that it was made from."
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
