"""Experts under the names that transformers 5 has in memory, which save_pretrained writes where it is asked to."""

from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_tiny_tokenizer
from packages import quantize

from mxconv.arch.families.table import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.stored_weights import dense_weights

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
FAMILIES = (
    "mixtral",
    "olmoe",
    "qwen2_moe",
    "qwen3_moe",
    "granitemoe",
    "granitemoehybrid, with experts",
    "gpt_oss",
    "deepseek_v3",
    "glm4_moe",
    "qwen3_5_moe",
    "qwen3_next, with experts",
)
TOKEN_IDS = list(range(3, 15))


def logits(folder: Path) -> np.ndarray:
    config = describe_file(folder / "config.json")
    with open_checkpoint(folder) as checkpoint:
        decoder = Decoder(config, dense_weights(checkpoint.tensors, config), "experts")
        return decoder.forward(TOKEN_IDS, KVCache(config))


@pytest.mark.parametrize("family", FAMILIES)
def test_both_formats_are_read_alike(family: str, tmp_path: Path) -> None:
    model = checkpoints.make_model(family)
    checkpoints.write_checkpoint(model, tmp_path / "published")
    model.bfloat16().save_pretrained(tmp_path / "own", save_original_format=False)
    assert np.array_equal(logits(tmp_path / "own"), logits(tmp_path / "published"))


def test_a_package_of_such_a_checkpoint_decodes_as_the_checkpoint(tmp_path: Path) -> None:
    model = checkpoints.make_model("mixtral")
    checkpoints.write_checkpoint(model, tmp_path / "published")
    model.bfloat16().save_pretrained(tmp_path / "own", save_original_format=False)
    write_tiny_tokenizer(tmp_path / "own" / "tokenizer.json", model.config.vocab_size)
    manifest = quantize(tmp_path / "own", tmp_path / "package", codec="bsfp")
    stacks = {record.name for record in manifest.tensors if record.stack is not None}
    assert "model.layers.0.mlp.experts.gate_up_proj" in stacks
    with LoadedPackage(tmp_path / "package", kernel="numpy") as loaded:
        decoder = loaded.levels[0].decoder
        assert decoder is not None
        found = decoder.forward(TOKEN_IDS, KVCache(decoder.config))
    assert np.array_equal(found, logits(tmp_path / "published"))
