"""Losses of a draft, from its logits and the target's.

Source:
    Neelam et al., "SPIRe: Boosting LLM Inference Throughput with Speculative Decoding" (arXiv 2504.06419), section 3.4;
    expected acceptance: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (arXiv
    2211.17192), section 3; TVD++: arXiv 2403.00858, section 3.
"""

import torch
from torch import Tensor
from torch.nn import functional


def mixed_loss(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Half the distillation loss, less half the expected acceptance, which is to grow; the mean over all tokens.

    Args:
        draft_logits: (..., vocab_size).
        target_logits: the same shape, of the same texts; no gradient is theirs.
    """
    return (distillation_loss(draft_logits, target_logits) - expected_acceptance(draft_logits, target_logits)) / 2


def distillation_loss(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Cross-entropy of the draft against the target's distribution, mean over all tokens."""
    wanted = torch.softmax(target_logits.detach().float(), -1)
    return -(wanted * functional.log_softmax(draft_logits.float(), -1)).sum(-1).mean()


def expected_acceptance(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """The chance that rejection sampling accepts a token drawn from the draft: the mass that both share, mean."""
    wanted = torch.softmax(target_logits.detach().float(), -1)
    return torch.minimum(wanted, torch.softmax(draft_logits.float(), -1)).sum(-1).mean()


def hard_target_loss(draft_logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy against the text itself, (...) int64: the loss without distillation (an ablation of Fig. 5)."""
    return functional.cross_entropy(draft_logits.float().flatten(0, -2), tokens.flatten())


def kl_divergence(draft: Tensor, target: Tensor) -> Tensor:
    """KL(target || draft) in nats a token, from logits (..., vocab_size)."""
    ours, theirs = draft.flatten(0, -2).float().log_softmax(-1), target.flatten(0, -2).float().log_softmax(-1)
    return functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def tvd_plus_plus(draft: Tensor, target: Tensor) -> Tensor:
    """Total variation distance as a policy gradient whose rewards are centred and scaled; logits (..., vocab_size).

    A token is worth 1 where the target gives it more than the draft does. The gradient is that of the distance with
    less variance; the value is no distance.

    Source:
        arXiv 2403.00858, section 3.3.
    """
    ours, theirs = draft.flatten(0, -2).float().softmax(-1), target.flatten(0, -2).float().softmax(-1)
    rewards = (theirs > ours).float().detach()
    weights = ours.detach() / len(ours)
    mean = (weights * rewards).sum()
    spread = (weights * (rewards - mean) ** 2).sum().sqrt().clamp_min(1e-6)
    return -(ours * (rewards - mean) / spread).sum(-1).mean()
