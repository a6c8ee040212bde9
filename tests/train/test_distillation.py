"""Distillation: a draft that mxconv loads as any other model."""

import json
from pathlib import Path

import pytest
from commands import run_mxconv
from packages import quantize
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import TRAINED

from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy


@pytest.mark.parametrize("loss", ["kl", "tvd++", "text"])
def test_a_trained_draft_is_a_model_like_any_other(loss: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("def read(self, path):\n    return path\n" * 40)
    sizes = ("--hidden-size", "32", "--layers", "1", "--heads", "2", "--length", "32", "--batch-tokens", "128")
    paths = (tmp_path / "texts.txt", "--target", TRAINED, "-o", tmp_path / "draft")
    words = [*map(str, paths), *sizes, "--steps", "3", "--loss", loss]
    made = run_mxconv("train", "draft", *words)
    assert made.returncode == 0, made.stderr
    config, theirs = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "draft", TRAINED))
    assert [config[key] for key in ("bos_token_id", "eos_token_id")] == [
        theirs[key] for key in ("bos_token_id", "eos_token_id")
    ]
    quantize(TRAINED, tmp_path / "package", drafts=(f"checkpoint:{tmp_path / 'draft'}",))
    with LoadedPackage(tmp_path / "package", ["target", "draft"]) as loaded:
        ids = loaded.tokenizer.encode("def read(self")
        found, generation = speculate(Hierarchy(loaded.levels, [2], [0.0]), ids, 12)
        assert found == by_hand(decoder_of(loaded.levels[0]), ids, 12)
        assert generation.trace.statistics[1].num_proposed > 0
