"""What a decoder keeps of the positions that it has seen: keys and values, and states where mixers have some."""

from collections.abc import Sequence
from itertools import pairwise

from mxconv.arrays import F32, float32_zeros
from mxconv.errors import ModelError
from mxconv.model.config import ModelConfig
from mxconv.model.recurrent.state_cache import StateCache
from mxconv.model.tree import Tree


class KVCache:
    """Keys and values, each (num_attending, num_key_value_heads, capacity, head_dim) float32: room for the largest.

    `states` is what mixers with a state have; None where all layers attend. `slots` says of each layer which it is
    among those of its kind.

    Positions 0..length-1 are valid. A forward pass writes behind them and then advances; taking tokens back is
    `truncate`, and the next pass overwrites. A draft that shares its target's cache drafts behind `length`,
    truncates, and leaves the target to write its own keys and values there. States go back with the positions, bit for
    bit, but not without limit: `reachable` says how far.

    `num_left_out` positions of the text are in no place: those of new rows are higher by as many. 0 unless set.

    Args:
        config: sizes.
        capacity: positions to make room for at first; the room doubles when it is used up.
        rewinds: whether it can be cut back to any length, at the price of a row's input for every position in layers
            with a state.
    """

    def __init__(self, config: ModelConfig, capacity: int = 64, rewinds: bool = False) -> None:
        self.slots = config.slots
        self.num_layers = config.num_hidden_layers
        self.num_attending = len(config.attentions)
        sizes = config.state_sizes
        self.states = None if sizes is None else StateCache(sizes, self.num_layers - self.num_attending, rewinds)
        self.num_key_value_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.length = 0
        self.num_left_out = 0
        self._keys = self._allocate(max(capacity, 1))
        self._values = self._allocate(max(capacity, 1))

    @property
    def capacity(self) -> int:
        capacity: int = self._keys.shape[2]
        return capacity

    @property
    def arrays(self) -> tuple[F32, F32]:
        """Keys and values of every position that there is room for; a native pass writes behind `length` itself."""
        return self._keys, self._values

    def fits(self, config: ModelConfig) -> bool:
        """Whether a decoder of this configuration can use it."""
        needed = config.num_hidden_layers, config.num_key_value_heads, config.head_dim
        if (self.num_layers, self.num_key_value_heads, self.head_dim) != needed:
            return False
        sizes, num_layers = config.state_sizes, config.num_hidden_layers - len(config.attentions)
        return sizes is None if self.states is None else self.states.fits(sizes, num_layers)

    def begin(self, tree: Tree, num_wanted: int) -> None:
        """Make room for the rows of a pass and plan the way of their states; `advance` ends it.

        Args:
            tree: of the pass.
            num_wanted: rows that may be taken back, the last ones.
        """
        self.reserve(tree.num_rows)
        if self.states is not None:
            self.states.begin(self.length, tree, num_wanted)

    def reserve(self, num_tokens: int) -> None:
        """Make room for `num_tokens` positions behind `length`."""
        needed = self.length + num_tokens
        if needed <= self.capacity:
            return
        capacity = self.capacity
        while capacity < needed:
            capacity *= 2
        grown = self._allocate(capacity), self._allocate(capacity)  # both, or nothing has changed
        for old, new in zip(self.arrays, grown, strict=True):
            new[:, :, : self.length] = old[:, :, : self.length]
        self._keys, self._values = grown

    def write(self, layer: int, keys: F32, values: F32) -> None:
        """Put one layer's keys and values behind `length`, where `reserve` made room.

        Args:
            keys: (num_tokens, num_key_value_heads, head_dim) float32, as are the values, of perhaps another head_dim.
        """
        stop = self.length + len(keys)
        assert stop <= self.capacity
        layer = self.slots[layer]
        for array, rows in ((self._keys, keys), (self._values, values)):
            _, heads, size = rows.shape  # a layer of fewer or smaller heads leaves the rest alone
            array[layer, :heads, self.length : stop, :size] = rows.transpose(1, 0, 2)

    def read(self, layer: int, places: Sequence[int]) -> tuple[F32, F32]:
        """Keys and values at some places, (num_key_value_heads, len(places), head_dim) each; views of a range."""
        index = slice(places.start, places.stop) if isinstance(places, range) else list(places)
        layer = self.slots[layer]
        return self._keys[layer][:, index], self._values[layer][:, index]

    def advance(self, num_tokens: int) -> None:
        """Declare the positions that all layers have written valid."""
        assert self.length + num_tokens <= self.capacity
        self.length += num_tokens
        if self.states is not None:
            self.states.commit()

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of what lies behind `start`, keep some rows, moved together, and forget the rest.

        Args:
            start: positions that stay as they are.
            rows: ascending, counted from `start`: a path of the tree that was evaluated there.

        Raises:
            ModelError: a row that there is not, or rows that do not ascend.
        """
        stop = start + len(rows)
        if any(row >= later for row, later in pairwise([-1, *rows, self.length - start])):
            raise ModelError(
                f"KV cache: rows {list(rows)} of {self.length - start}; ascending ones that are there are required."
            )
        if list(rows) != list(range(len(rows))):
            for array in self.arrays:
                array[:, :, start:stop] = array[:, :, [start + row for row in rows]]
        if self.states is not None:
            self.states.keep(start, rows)
        self.length = stop

    def reachable(self, length: int) -> int:
        """The most positions up to `length` that `truncate` can leave: `length`, or 0 where its states are gone.

        At least the 64 last rows can be taken back, and all rows of a pass that wanted logits.
        """
        return length if self.states is None else self.states.reachable(length)

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on.

        Raises:
            ModelError: there are fewer than `length`, or the states there are gone.
        """
        if not 0 <= length <= self.length:
            raise ModelError(
                f"KV cache: truncation to {length} positions; 0 to {self.length} are there. "
                "Truncate to a length that was reached."
            )
        if self.reachable(length) != length:
            raise ModelError(
                f"KV cache: truncation to {length} positions, whose states are gone; {self.length} are there. "
                "Truncate to 0 and evaluate the text again, or make the cache with rewinds=True."
            )
        if self.states is not None:
            self.states.truncate(length)
        self.length = length

    def _allocate(self, capacity: int) -> F32:
        shape = self.num_attending, self.num_key_value_heads, capacity, self.head_dim
        try:
            return float32_zeros(shape)
        except (MemoryError, ValueError) as error:
            raise ModelError(
                f"KV cache: no memory for {capacity} positions, shape {shape} in float32; "
                "less is required. Shorten the prompt or generate fewer tokens."
            ) from error
