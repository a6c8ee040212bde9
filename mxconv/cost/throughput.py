"""Decoding many sequences at once: SPIRe's throughput multiplier, for drafts of any size and with sparse caches.

    multiplier = tau / dt
    dt = (k * forward(draft) + forward(target over k + 1 tokens)) / forward(target)
    forward = max(FLOPs, (weight bytes + KV bytes) * HOI)             HOI: peak FLOPs a second over bytes a second

Source:
    SPIRe (Neelam et al., MatX, arXiv 2504.06419), section Evaluation Metric; sizes, bytes and the memory vectors'
    projection as in its appendix. All values take one byte, the embedding and head are left out, and attention's own
    arithmetic is not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mxconv.errors import MxconvError


@dataclass(frozen=True)
class DecoderBody:
    """A decoder without embedding and head: grouped-query attention and a gated feed-forward part."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int

    @property
    def num_parameters(self) -> int:
        heads = 2 * self.num_attention_heads + 2 * self.num_key_value_heads
        matrices = heads * self.head_dim * self.hidden_size + 3 * self.hidden_size * self.intermediate_size
        return self.num_layers * (2 * self.hidden_size + matrices)

    @property
    def kv_bytes_per_position(self) -> int:
        return 2 * self.num_layers * self.num_key_value_heads * self.head_dim

    def with_layers(self, fraction: float) -> "DecoderBody":
        """The same with that fraction of the layers: how SPIRe's draft is cut from its target."""
        return replace(self, num_layers=max(round(self.num_layers * fraction), 1))


@dataclass(frozen=True)
class BatchedDraft:
    """A draft for a batch of sequences.

    Args:
        body: its sizes.
        tokens_per_round: tau, the tokens that a round yields.
        window: last positions that its cache keeps; None keeps all.
        num_sinks: first positions that it keeps besides the window.
        projects_memory: whether each pass also projects one memory vector into keys and values [SPIRe].
    """

    body: DecoderBody
    tokens_per_round: float
    window: int | None = None
    num_sinks: int = 1
    projects_memory: bool = False

    def positions(self, context: int) -> int:
        """Cached positions that it reads."""
        return context if self.window is None else min(self.num_sinks + self.window, context)


def throughput_multiplier(
    target: DecoderBody, draft: BatchedDraft, batch: int, context: int, num_draft_tokens: int, intensity: float
) -> float:
    """Tokens a second over plain decoding of the same batch.

    Args:
        target: that verifies.
        draft: what it drafts with.
        batch: sequences decoded together.
        context: positions in each cache.
        num_draft_tokens: k, drafted a round.
        intensity: HOI, FLOPs a byte.

    Raises:
        MxconvError: a number below 1.
    """
    for name, value in (("batch", batch), ("context", context), ("draft tokens", num_draft_tokens)):
        if value < 1:
            raise MxconvError(f"{name}: {value}; at least 1 is required. Give a larger number.")
    flops = 2 * target.num_parameters * batch
    read = intensity * (target.num_parameters + batch * context * target.kv_bytes_per_position)
    body = draft.body
    draft_flops = 2 * body.num_parameters * batch
    if draft.projects_memory:
        draft_flops += 2 * batch * 2 * body.num_layers * body.num_key_value_heads * body.head_dim * body.hidden_size
    draft_read = intensity * (body.num_parameters + batch * draft.positions(context) * body.kv_bytes_per_position)
    drafting = num_draft_tokens * max(draft_flops, draft_read)
    verifying = max((num_draft_tokens + 1) * flops, read)
    return draft.tokens_per_round * max(flops, read) / (drafting + verifying)


def units_saved(multiplier: float, decoding_units: float = 10.0, training_units: float = 0.0) -> float:
    """Compute saved over plain decoding that costs `decoding_units`, less what training the draft costs.

    Source:
        SPIRe, section Cost Analysis.
    """
    return decoding_units * (1 - 1 / multiplier) - training_units


SPIRE_TARGET = DecoderBody(8, 512, 8, 8, 128, 4096)
SPIRE_VANILLA = DecoderBody(4, 256, 8, 8, 64, 2048)
LLAMA_3_70B = DecoderBody(80, 8192, 64, 8, 128, 28672)
SPIRE_DRAFT_TOKENS = 4
WINDOW = 64  # positions, at every context: SPIRe, section 4. Its figures of Llama 3 70B follow from 8,192 of 65,536
SPIRE_DRAFTS: dict[str, Callable[[DecoderBody, int], BatchedDraft]] = {  # tau at a context of 512: SPIRe, Table 1
    "vanilla": lambda target, _: BatchedDraft(_vanilla(target), 2.647),
    "MagicDec": lambda target, window: BatchedDraft(target, 3.891, window),
    "SPIRe": lambda target, window: BatchedDraft(target.with_layers(1 / 4), 3.401, window, projects_memory=True),
}


def _vanilla(target: DecoderBody) -> DecoderBody:
    """A draft of an eighth of the target: SPIRe's own for its target, an eighth of the layers elsewhere."""
    return SPIRE_VANILLA if target == SPIRE_TARGET else target.with_layers(1 / 8)
