"""Distillation: a draft that mxconv loads as any other model."""

import json
from pathlib import Path

from commands import run_mxconv
from packages import quantize
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import TRAINED

from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy


def test_a_trained_draft_is_a_model_like_any_other(texts: Path, tmp_path: Path) -> None:
    sizes = ("--hidden-size", "32", "--layers", "1", "--heads", "2", "--length", "32", "--batch-tokens", "128")
    for loss in ("kl", "tvd++", "text"):
        paths = (texts / "texts.txt", "--target", TRAINED, "-o", tmp_path / loss)
        made = run_mxconv("train", "draft", *map(str, paths), *sizes, "--steps", "3", "--loss", loss)
        assert made.returncode == 0, made.stderr
    config, theirs = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "kl", TRAINED))
    for key in ("bos_token_id", "eos_token_id"):
        assert config[key] == theirs[key]
    weights = [(tmp_path / loss / "model.safetensors").read_bytes() for loss in ("kl", "tvd++", "text")]
    assert len(set(weights)) == 3  # each loss trains another draft
    quantize(TRAINED, tmp_path / "package", drafts=(f"checkpoint:{tmp_path / 'kl'}",))
    with LoadedPackage(tmp_path / "package", ["target", "kl"]) as loaded:
        ids = loaded.tokenizer.encode("def read(self")
        found, generation = speculate(Hierarchy(loaded.levels, [2], [0.0]), ids, 12)
        assert found == by_hand(decoder_of(loaded.levels[0]), ids, 12)
        assert generation.trace.statistics[1].num_proposed > 0
