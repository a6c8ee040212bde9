"""Latent attention (MLA) as data: a cache holds one short vector a position, from which every head takes its own."""

from dataclasses import dataclass

from mxconv.arch.elements import Linear, Norm
from mxconv.arch.rope_parameters import RopeParameters


@dataclass(frozen=True)
class LatentAttention:
    """Causal attention over latent vectors, and one key for all heads that rotates.

    Args:
        num_heads: of queries; each has as many keys and values.
        latent_size: of what a cache holds of a position besides the key that rotates.
        plain_size: numbers of a query that do not rotate.
        rotated_size: and of those that do.
        value_size: of what a head gives.
        query_down: to fewer numbers, (its length, hidden_size), behind which is `query_norm`; None for none.
        query_rank: how many; the hidden size without `query_down`.
        query: (num_heads * (plain_size + rotated_size), query_rank).
        down: latent vector and rotated key, (latent_size + rotated_size, hidden_size).
        latent_norm: of the former.
        up: a head's keys, then its values, (num_heads * (plain_size + value_size), latent_size).
        scale: of a query times a key.

    Source:
        DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    num_heads: int
    latent_size: int
    plain_size: int
    rotated_size: int
    value_size: int
    query_rank: int
    query_down: Linear | None
    query_norm: Norm | None
    query: Linear
    down: Linear
    latent_norm: Norm
    up: Linear
    output: Linear
    scale: float
    rope: RopeParameters
    window: int | None = None
    source: int | None = None  # every layer has latent vectors of its own

    @property
    def num_key_value_heads(self) -> int:
        """Of a cache: all heads read one."""
        return 1

    @property
    def head_dim(self) -> int:
        """Numbers that a cache holds of a position."""
        return self.latent_size + self.rotated_size
