"""Losses of a draft whose logits stand beside the target's.

Source:
    Neelam et al., "SPIRe: Boosting LLM Inference Throughput with Speculative Decoding" (arXiv 2504.06419), section 3.4;
    expected acceptance: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (arXiv
    2211.17192), section 3.
"""

import torch
from torch import Tensor
from torch.nn import functional

from mxconv.errors import ModelError


def mixed_loss(draft_logits: Tensor, target_logits: Tensor, distillation_share: float = 0.5) -> Tensor:
    """A share of the distillation loss, and of the rest the expected acceptance, which is to grow.

    Args:
        draft_logits: (..., vocab_size).
        target_logits: the same shape, of the same texts; no gradient is theirs.
        distillation_share: omega, 0 to 1; with 1 it is `distillation_loss`.

    Returns:
        The mean over all tokens, a scalar.

    Raises:
        ModelError: the share is outside its range.
    """
    if not 0 <= distillation_share <= 1:
        raise ModelError(f"distillation share: {distillation_share}; 0 to 1 is required.")
    loss = distillation_share * distillation_loss(draft_logits, target_logits)
    if distillation_share < 1:
        loss = loss - (1 - distillation_share) * expected_acceptance(draft_logits, target_logits)
    return loss


def distillation_loss(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Cross-entropy of the draft against the target's distribution, mean over all tokens."""
    wanted = torch.softmax(target_logits.detach().float(), -1)
    return -(wanted * functional.log_softmax(draft_logits.float(), -1)).sum(-1).mean()


def expected_acceptance(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """The chance that a token drawn from the draft stands under rejection sampling: the mass that both share, mean."""
    wanted = torch.softmax(target_logits.detach().float(), -1)
    return torch.minimum(wanted, torch.softmax(draft_logits.float(), -1)).sum(-1).mean()


def hard_target_loss(draft_logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross-entropy against the text itself, (...) int64: the loss without distillation (an ablation of Fig. 5)."""
    return functional.cross_entropy(draft_logits.float().flatten(0, -2), tokens.flatten())
