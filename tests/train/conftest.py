"""The embedded target, frozen, and text that it wrote: both are made once."""

from pathlib import Path

import pytest
from commands import run_mxconv
from trained_levels import TRAINED

from mxconv.train.training_task import FrozenTarget

TEXT = "def read(self, path):\n    with open(path) as file:\n        return file.read()\n\n" * 40


@pytest.fixture(scope="session")
def target() -> FrozenTarget:
    import torch

    return FrozenTarget(TRAINED, torch.device("cpu"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `texts.txt`, and `own.jsonl`: 64 texts of 32 tokens, 24 of which the target wrote."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "texts.txt").write_text(TEXT)
    words = (folder / "texts.txt", "--target", TRAINED, "-o", folder / "own.jsonl", "--num-texts", 64)
    made = run_mxconv("train", "generate", *map(str, words), "--prompt-tokens", "8", "--new-tokens", "24")
    assert made.returncode == 0, made.stderr
    return folder
