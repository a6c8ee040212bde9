"""Distillation: its losses by definition, and a draft that mxconv loads as any other model."""

import json
from pathlib import Path

import pytest
import torch
from commands import run_mxconv
from packages import quantize
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import TRAINED

from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.train.losses import kl_divergence, tvd_plus_plus


@pytest.fixture
def logits() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    draft, target = (torch.randn(2, 3, 7, generator=generator, dtype=torch.float64) for _ in range(2))
    return draft.float().requires_grad_(), target.float()


def test_kl_is_the_mean_over_tokens(logits: tuple[torch.Tensor, torch.Tensor]) -> None:
    ours, theirs = (row.detach().double().softmax(-1) for row in logits)
    expected = (theirs * (theirs.log() - ours.log())).sum(-1).mean()
    torch.testing.assert_close(kl_divergence(*logits).double(), expected, rtol=1e-5, atol=1e-6)


def test_tvd_plus_plus_has_the_distances_gradient_but_for_its_scale(
    logits: tuple[torch.Tensor, torch.Tensor],
) -> None:
    """Centring rewards changes no gradient, since probabilities sum to one; scaling them changes its length."""
    draft, target = logits
    (plus_plus,) = torch.autograd.grad(tvd_plus_plus(draft, target), draft)
    ours, theirs = draft.softmax(-1), target.softmax(-1)
    (distance,) = torch.autograd.grad((ours - theirs).abs().sum(-1).mean() / 2, draft)
    cosine = torch.nn.functional.cosine_similarity(plus_plus.flatten(), distance.flatten(), dim=0)
    assert cosine.item() == pytest.approx(1, abs=1e-5)
    assert plus_plus.norm() > distance.norm()


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
