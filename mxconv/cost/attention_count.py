"""What the attention of one layer stores, reads and computes."""

from dataclasses import dataclass

from mxconv.model.description import Attention, LayerParts, Linear
from mxconv.model.latent import LatentAttention


@dataclass(frozen=True)
class AttentionCount:
    """Numbers of one layer.

    Args:
        weights: of its matrices.
        vectors: of its biases and sinks.
        kv_values: that one new token reads of a cached position; of latent vectors, which are keys and values at once.
        multiply_adds: of one new token with one cached position.
        window: positions that it sees, None is all.
    """

    weights: int
    vectors: int
    kv_values: int
    multiply_adds: int
    window: int | None = None

    def positions(self, context: float) -> float:
        """Cached ones that a new token attends to."""
        return context if self.window is None else min(context, self.window)

    @classmethod
    def of(cls, layer: LayerParts, hidden_size: int) -> "AttentionCount":
        """Of a layer as its description has it."""
        if isinstance(layer.mixer, LatentAttention):
            return _latent(layer.mixer, hidden_size)
        assert isinstance(layer.mixer, Attention), "models with other mixers are refused before"
        return _grouped(layer.mixer, hidden_size)


def _grouped(mixer: Attention, hidden_size: int) -> AttentionCount:
    """Of attention over heads; layers that read another's keys and values store none, and read as much."""
    queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_key_value_heads * mixer.head_dim
    outputs: list[tuple[Linear, int]] = [(mixer.query, queries)]
    if mixer.source is None:
        outputs.append((mixer.key, keys))
    if mixer.source is None and not mixer.keys_are_values:
        outputs.append((mixer.value, keys))
    return AttentionCount(
        weights=hidden_size * (sum(length for _, length in outputs) + queries),
        vectors=sum(length * linear.has_bias for linear, length in outputs)
        + hidden_size * mixer.output.has_bias
        + mixer.num_heads * (mixer.sinks is not None),
        kv_values=2 * keys,
        multiply_adds=2 * queries,
        window=mixer.window,
    )


def _latent(mixer: LatentAttention, hidden_size: int) -> AttentionCount:
    down = mixer.query_down
    queries = mixer.query_rank * mixer.num_heads * (mixer.plain_size + mixer.rotated_size)
    ups = mixer.latent_size * mixer.num_heads * (mixer.plain_size + mixer.value_size)
    return AttentionCount(
        weights=(0 if down is None else hidden_size * mixer.query_rank)
        + queries
        + hidden_size * mixer.head_dim
        + ups
        + mixer.num_heads * mixer.value_size * hidden_size,
        vectors=(mixer.query_rank if down is not None and down.has_bias else 0)
        + mixer.head_dim * mixer.down.has_bias
        + hidden_size * mixer.output.has_bias,
        kv_values=mixer.head_dim,
        multiply_adds=mixer.num_heads * (mixer.head_dim + mixer.latent_size),
    )
