"""Losses of drafts against their definitions, summed token by token."""

import math

import pytest
import torch

from mxconv.train.training_task import (
    distillation_loss,
    expected_acceptance,
    hard_target_loss,
    kl_divergence,
    mixed_loss,
    tvd_plus_plus,
)

GENERATOR = torch.Generator().manual_seed(0)
DRAFT, TARGET = (3 * torch.randn(2, 5, 11, generator=GENERATOR, dtype=torch.float64) for _ in range(2))
TOKENS = torch.randint(0, 11, (2, 5), generator=GENERATOR)


def shares(logits: list[float]) -> list[float]:
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


def plain() -> tuple[float, float, float]:
    """Distillation, acceptance and hard target, each the mean over ten tokens."""
    distilled, accepted, hard = 0.0, 0.0, 0.0
    rows = zip(DRAFT.flatten(0, 1).tolist(), TARGET.flatten(0, 1).tolist(), TOKENS.flatten().tolist(), strict=True)
    for draft, target, token in rows:
        q, p = shares(draft), shares(target)
        distilled -= sum(wanted * math.log(own) for wanted, own in zip(p, q, strict=True)) / 10
        accepted += sum(min(wanted, own) for wanted, own in zip(p, q, strict=True)) / 10
        hard -= math.log(q[token]) / 10
    return distilled, accepted, hard


def test_losses_are_what_they_are_defined_to_be() -> None:
    distilled, accepted, hard = plain()
    assert float(distillation_loss(DRAFT, TARGET)) == pytest.approx(distilled, rel=1e-5)
    assert float(expected_acceptance(DRAFT, TARGET)) == pytest.approx(accepted, rel=1e-5)
    assert float(hard_target_loss(DRAFT, TOKENS)) == pytest.approx(hard, rel=1e-5)
    assert float(mixed_loss(DRAFT, TARGET)) == pytest.approx((distilled - accepted) / 2, rel=1e-5)


def test_rejection_sampling_accepts_as_often_as_expected() -> None:
    """By drawing: a token of the draft stands with the chance min(1, p / q)."""
    generator = torch.Generator().manual_seed(1)
    q, p = torch.softmax(DRAFT[0, 0], -1), torch.softmax(TARGET[0, 0], -1)
    drawn = torch.multinomial(q, 200_000, replacement=True, generator=generator)
    stands = torch.rand(200_000, generator=generator) < (p / q)[drawn]
    found = float(expected_acceptance(DRAFT[0, :1], TARGET[0, :1]))
    assert found == pytest.approx(float(stands.double().mean()), abs=0.005)


def test_the_least_loss_is_the_targets_own_logits() -> None:
    least = float(mixed_loss(TARGET + 3.0, TARGET))  # a constant changes no distribution
    assert float(expected_acceptance(TARGET + 3.0, TARGET)) == pytest.approx(1.0)
    generator = torch.Generator().manual_seed(2)
    for size in (0.01, 0.1, 1.0):
        for _ in range(3):
            other = TARGET + size * torch.randn(TARGET.shape, generator=generator, dtype=torch.float64)
            assert float(mixed_loss(other, TARGET)) > least


def test_the_target_is_not_trained() -> None:
    draft, target = DRAFT.clone().requires_grad_(), TARGET.clone().requires_grad_()
    mixed_loss(draft, target).backward()
    assert target.grad is None and draft.grad is not None


def test_kl_is_the_mean_over_tokens() -> None:
    ours, theirs = (row.softmax(-1) for row in (DRAFT, TARGET))
    expected = (theirs * (theirs.log() - ours.log())).sum(-1).mean()
    torch.testing.assert_close(kl_divergence(DRAFT, TARGET).double(), expected, rtol=1e-5, atol=1e-6)


def test_tvd_plus_plus_has_the_distances_gradient_but_for_its_scale() -> None:
    """Centring rewards changes no gradient, since probabilities sum to one; scaling them changes its length."""
    draft = DRAFT.float().requires_grad_()
    (plus_plus,) = torch.autograd.grad(tvd_plus_plus(draft, TARGET.float()), draft)
    ours, theirs = draft.softmax(-1), TARGET.float().softmax(-1)
    (distance,) = torch.autograd.grad((ours - theirs).abs().sum(-1).mean() / 2, draft)
    cosine = torch.nn.functional.cosine_similarity(plus_plus.flatten(), distance.flatten(), dim=0)
    assert cosine.item() == pytest.approx(1, abs=1e-5)
    assert plus_plus.norm() > distance.norm()
