"""Where a tensor of a checkpoint stands in a GGUF file: its name, its rows and columns, what becomes of its values."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mxconv.arch.elements import Linear, Norm

EMBEDDING, HEAD, POSITIONS = "token_embd.weight", "output.weight", "position_embd.weight"
Ranges = tuple[range, ...]  # of rows or columns, one behind the other


@dataclass(frozen=True)
class RowOrder:
    """Another order of a tensor's rows.

    Args:
        kind: "pairs" puts the two rows that rotate together side by side, in whole heads of `head_dim`; "blocks" puts
            the queries of all heads first, then keys, then values, where each head had its three.
        head_dim: rows of a head.
        rotary_dim: of them, the ones that rotate, from the first on.
    """

    kind: Literal["pairs", "blocks"]
    head_dim: int
    rotary_dim: int


@dataclass(frozen=True)
class Place:
    """A tensor's place.

    Args:
        name: GGUF's.
        order: None is as they are.
        rows: of the checkpoint's rows those that stand here; None is all. Of a stack, each expert's.
        columns: likewise.
        shape: of a vector, or of what is as small, where GGUF has another; the values follow each other alike.
        own_shape: of the same in the checkpoint.
        offset: added to every value: what norms of some families leave out.
        is_rate: whether each value x is here -exp(x): how fast a state decays.
        is_transposed: whether the checkpoint has rows and columns exchanged.
        is_vector: whether llama.cpp computes with it in F32, matrix or not.
        expert: whose matrix it is of a stack of that name; None stands alone.
    """

    name: str
    order: RowOrder | None = None
    rows: Ranges | None = None
    columns: Ranges | None = None
    shape: tuple[int, ...] | None = None
    own_shape: tuple[int, ...] | None = None
    offset: float = 0.0
    is_rate: bool = False
    is_transposed: bool = False
    is_vector: bool = False
    expert: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether rows and columns are those of the checkpoint."""
        return self.order is None and self.expert is None and not self.is_read_whole

    @property
    def is_read_whole(self) -> bool:
        """Whether any row here may come from any row there."""
        is_in_blocks = self.order is not None and self.order.kind == "blocks"
        is_chosen = self.rows is not None or self.columns is not None
        return is_in_blocks or is_chosen or self.is_transposed or self.shape is not None


def of_linear(linear: Linear, module: str, order: RowOrder | None = None) -> Iterator[tuple[str, Place]]:
    """Of a matrix and its bias."""
    yield f"{linear.name}.weight", Place(f"{module}.weight", order, is_transposed=linear.is_transposed)
    if linear.has_bias:
        yield f"{linear.name}.bias", Place(f"{module}.bias", order)


def of_rows(linear: Linear, module: str, rows: Ranges) -> Iterator[tuple[str, Place]]:
    """Of some rows of a matrix, and its bias."""
    yield f"{linear.name}.weight", Place(f"{module}.weight", rows=rows)
    if linear.has_bias:
        yield f"{linear.name}.bias", Place(f"{module}.bias", rows=rows)


def of_norm(norm: Norm | None, module: str) -> Iterator[tuple[str, Place]]:
    """Of its weights and its bias, where it has them."""
    if norm is not None and norm.has_weight:
        yield f"{norm.name}.weight", Place(f"{module}.weight", offset=norm.offset)
    if norm is not None and norm.has_bias:
        yield f"{norm.name}.bias", Place(f"{module}.bias")
