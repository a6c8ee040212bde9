"""What a cache keeps of mixers with a state: a few states of the past, and what rows since then have added to it.

A state is large and a row's input is small. So there is one running state, the *tip*; up to three *snapshots*, copies
of states that the text went through; and the inputs of all rows after the oldest snapshot. Rejected rows take their
inputs with them; where the tip has seen one of them, the next pass walks again from the last snapshot that has not,
over inputs that are there: the same arithmetic on the same numbers, so the bits are as if none had been rejected.
No weights are read for that. A tree's rows branch from copies of the tip, which exist for one layer at a time.

Memory of a layer, in float32 numbers: four states, of (kernel_size - 1) * num_channels + the memory's; and for a row
`input_size`. At least 64 rows can be taken back, and all that wanted logits in their pass; some 200 rows are kept.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np

from mxconv.arch.elements import StateSizes
from mxconv.arrays import F32, float32_zeros
from mxconv.engine.tree import MOST_ROWS, Tree
from mxconv.errors import ModelError


@dataclass(frozen=True, eq=False)
class LayerState:
    """The state of one layer; a step changes the arrays."""

    window: F32  # (kernel_size - 1, num_channels), what the convolution has seen, the oldest row first
    memory: F32  # as the sizes say

    def copy(self) -> "LayerState":
        return LayerState(self.window.copy(), self.memory.copy())

    def take(self, other: "LayerState") -> None:
        """Become another."""
        self.window[...] = other.window
        self.memory[...] = other.memory


Step = Callable[[LayerState, F32], F32]
"""A row's input, (input_size,): changes the state and returns what the mixer makes of it."""


def _zeros(shape: tuple[int, ...]) -> F32:
    """An array for states or inputs. Raises ModelError where there is no memory for it."""
    try:
        return float32_zeros(shape)
    except (MemoryError, ValueError) as error:
        raise ModelError(
            f"recurrent state: no memory for an array of shape {shape} in float32; less is required. Use a smaller "
            "model, or fewer texts side by side."
        ) from error


@dataclass(frozen=True)
class Walk:
    """The way from a kept state to the state after each new row. Places count the rows of the cache from 0 on.

    `branches` are (row, parent) from `stop` on, parents before children, each on a state of its own; a parent that is
    `stop - 1` is the running state. Rows of earlier passes are among them where new ones descend from them.
    """

    source: int  # the slot of the state to start from; `TIP` is the running state itself
    first: int  # how many places that state has seen
    stop: int  # the rows first .. stop - 1 are walked one after another, by the running state
    length: int  # rows from here on are new, those before are in the cache
    saves: tuple[tuple[int, int], ...] = ()  # (place, slot): the running state after so many places is copied there
    branches: tuple[tuple[int, int], ...] = ()


def _shared_rows(tree: Tree) -> int:
    """How many rows, from the first on, are a chain that every new row ends or descends from."""
    if tree.is_chain:
        return len(tree.parents)
    new = [int(mask) for mask in tree.masks[tree.num_cached :]]
    count = 0
    while tree.parents[count] == count - 1 and all(
        mask >> count & 1 for row, mask in enumerate(new, tree.num_cached) if row >= count
    ):
        count += 1
    return count


def _branches(tree: Tree, num_shared: int, start: int) -> tuple[tuple[int, int], ...]:
    """The rows after the shared ones that lead to new ones, with their parents, as places from `start` on."""
    needed: set[int] = set()
    for row in range(max(tree.num_cached, num_shared), len(tree.parents)):
        needed.update(above for above in tree.path(row) if above >= num_shared)
    return tuple((start + row, start + tree.parents[row]) for row in sorted(needed))


TIP = 0  # the running state's slot; those of snapshots follow
NUM_SNAPSHOTS = 3
FIRST_ROOM = 64  # rows
MOST_ROOM = 512  # rows, where a pass wants few logits


def most_bytes(sizes: StateSizes, num_layers: int) -> int:
    """The most bytes that the `StateCache` of a decoded text takes, however long the text is."""
    state = (sizes.kernel_size - 1) * sizes.num_channels + prod(sizes.memory)
    return 4 * num_layers * ((1 + NUM_SNAPSHOTS) * state + MOST_ROOM * sizes.input_size)


class StateCache:
    """States and inputs of the layers of one sequence. `KVCache` says how long it is and hands on what happens.

    `windows` and `memories` are (1 + NUM_SNAPSHOTS, num_layers, ...), `inputs` is (num_layers, room, input_size) for
    the rows from `origin` on.
    """

    def __init__(self, sizes: StateSizes, num_layers: int) -> None:
        self.sizes = sizes
        self.num_layers = num_layers
        shape = 1 + NUM_SNAPSHOTS, num_layers
        self.windows = _zeros((*shape, sizes.kernel_size - 1, sizes.num_channels))
        self.memories = _zeros((*shape, *sizes.memory))
        self.inputs = self._room(FIRST_ROOM)
        self.origin = 0
        self.walk: Walk | None = None  # of the pass that is on its way
        self._next: tuple[int, F32] | None = None  # origin and inputs after that pass, where they change
        self._tip: int | None = 0  # how many places it has seen
        self._snapshots = [(0, 1)]  # (places, slot), ascending; the first is never missing
        self._held: list[int] = []  # places that stay reachable
        self._first_kept = 0  # the place of the oldest snapshot after the pass

    @property
    def num_bytes(self) -> int:
        """The bytes that it takes now."""
        return self.windows.nbytes + self.memories.nbytes + self.inputs.nbytes

    def fits(self, sizes: StateSizes | None, num_layers: int) -> bool:
        return (self.sizes, self.num_layers) == (sizes, num_layers)

    def begin(self, length: int, tree: Tree, num_wanted: int) -> None:
        """Plan a pass after `length` rows, of which the last `num_wanted` may be taken back, and make room for it.

        Until `commit`, whatever fails leaves the text as it was.
        """
        self.walk = self._next = None  # of a pass that failed
        num_shared, new_length = _shared_rows(tree), length + tree.num_rows
        start = length - tree.num_cached
        stop = start + num_shared
        source, first = self._nearest(stop)
        settled, taken_back = min(stop, length), max(MOST_ROWS, num_wanted)
        places = [settled] if source != TIP or settled - self._snapshots[-1][0] >= MOST_ROWS else []
        places += [stop - taken_back] if stop - settled > taken_back else []
        saves: list[tuple[int, int]] = []
        for place in places:
            if place > self._snapshots[-1][0]:
                saves.append((place, self._free_slot(saves)))
        limit, oldest = min([new_length - taken_back, *self._held]), self._snapshots[0][0]
        self._first_kept = max((p for p, _ in [*self._snapshots, *saves] if p <= limit), default=oldest)
        if self._first_kept > length:  # a long text: of its first rows nothing stays
            self._next = self._first_kept, self._room(2 * (new_length - self._first_kept))
        else:
            self._make_room(length, new_length)
        self._tip = None
        self.walk = Walk(source, first, stop, length, tuple(saves), _branches(tree, num_shared, start))

    @property
    def of_this_pass(self) -> Walk:
        """The way of the pass that has begun."""
        assert self.walk is not None, "a pass begins with `begin`"
        return self.walk

    @property
    def kept(self) -> tuple[int, F32]:
        """Where the inputs of the pass's rows go, from the number of a row on; those of rows before are not kept."""
        return self._next or (self.origin, self.inputs)

    def run(self, layer: int, inputs: F32, step: Step) -> F32:
        """What a mixer with this `step` makes of the new rows' inputs, (num_rows, input_size), each after its path."""
        walk = self.of_this_pass
        tip = self._settled(layer, step)
        given = []
        for place in range(walk.length, walk.stop):
            given.append(step(tip, inputs[place - walk.length]))
            self._save(layer, tip, place + 1)
        children, states = Counter(parent for _, parent in walk.branches), {walk.stop - 1: tip}
        for place, parent in walk.branches:
            children[parent] -= 1
            is_last = children[parent] == 0 and parent != walk.stop - 1
            state = states.pop(parent) if is_last else states[parent].copy()
            is_new = place >= walk.length
            made = step(state, inputs[place - walk.length] if is_new else self._input(layer, place))
            if place in children:
                states[place] = state
            if is_new:
                given.append(made)
        origin, kept = self.kept
        first = max(origin, walk.length)
        kept[layer, first - origin : walk.length + len(inputs) - origin] = inputs[first - walk.length :]
        return np.array(given)

    def commit(self) -> None:
        """The rows of the pass are there, in all layers."""
        if (walk := self.walk) is None:
            return
        self._tip, self.walk = walk.stop, None
        self._snapshots = [each for each in [*self._snapshots, *walk.saves] if each[0] >= self._first_kept]
        if self._next is not None:
            (self.origin, self.inputs), self._next = self._next, None

    def reachable(self, length: int) -> int:
        """The most rows up to `length` to which the past can be cut back: these, or none."""
        return length if self._snapshots[0][0] <= length else 0

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on, a reachable number."""
        assert self.reachable(length) == length
        self.walk = self._next = None
        self._snapshots = [each for each in self._snapshots if each[0] <= length]
        if self._tip is not None and self._tip > length:
            self._tip = None
        if not self._snapshots:
            self._snapshots, self.origin = [(0, 1)], 0
            self.windows[1], self.memories[1] = 0, 0

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Keep some of the rows after `start`, ascending, moved together."""
        num_same = next((place for place, row in enumerate(rows) if place != row), len(rows))
        self.truncate(start + num_same)
        first = start - self.origin
        moved = [first + row for row in rows[num_same:]]
        self.inputs[:, first + num_same : first + len(rows)] = self.inputs[:, moved]

    @contextmanager
    def borrow(self, start: int, stop: int) -> Iterator[None]:
        """For others who cut back to `start`, a reachable number; afterwards rows up to `stop` are there again."""
        self.walk = self._next = None  # of a pass that failed
        if start < self._snapshots[0][0]:  # others begin anew, and so elsewhere
            own = dict(vars(self))
            vars(self).update(vars(StateCache(self.sizes, self.num_layers)))
            try:
                yield
            finally:
                vars(self).update(own)
            return
        kept = self.inputs[:, start - self.origin : stop - self.origin].copy()
        self._held.append(start)
        try:
            yield
        finally:
            self._held.remove(start)
            self.truncate(start)
            self._make_room(start, stop)
            self.inputs[:, start - self.origin : stop - self.origin] = kept

    def _nearest(self, stop: int) -> tuple[int, int]:
        """The slot of the latest state that has seen nothing after `stop`, and how many places it has seen."""
        place, slot = max(each for each in self._snapshots if each[0] <= stop)
        if self._tip is not None and place <= self._tip <= stop:
            return TIP, self._tip
        return slot, place

    def _free_slot(self, saves: Sequence[tuple[int, int]]) -> int:
        """One that is free, or that of the last snapshot: the oldest serve rows that are rejected late."""
        taken = {slot for _, slot in (*self._snapshots, *saves)}
        if len(taken) == NUM_SNAPSHOTS:
            taken.remove(self._snapshots.pop()[1])
        return next(slot for slot in range(TIP + 1, TIP + 1 + NUM_SNAPSHOTS) if slot not in taken)

    def _make_room(self, length: int, new_length: int) -> None:
        """For inputs up to `new_length`, those from the oldest snapshot up to `length` in their places."""
        if new_length - self.origin <= self.inputs.shape[1]:
            return
        oldest = self._snapshots[0][0]
        kept = self.inputs[:, oldest - self.origin : length - self.origin]
        room = self._room(max(2 * (new_length - oldest), FIRST_ROOM))
        room[:, : length - oldest] = kept
        self.origin, self.inputs = oldest, room

    def _settled(self, layer: int, step: Step) -> LayerState:
        """The running state after all rows of the stretch that were there before."""
        walk, tip = self.of_this_pass, self._state(TIP, layer)
        if walk.source != TIP:
            tip.take(self._state(walk.source, layer))
        self._save(layer, tip, walk.first)
        for place in range(walk.first, min(walk.stop, walk.length)):
            step(tip, self._input(layer, place))
            self._save(layer, tip, place + 1)
        return tip

    def _save(self, layer: int, tip: LayerState, place: int) -> None:
        for wanted, slot in self.of_this_pass.saves:
            if wanted == place:
                self._state(slot, layer).take(tip)

    def _state(self, slot: int, layer: int) -> LayerState:
        return LayerState(self.windows[slot, layer], self.memories[slot, layer])

    def _input(self, layer: int, place: int) -> F32:
        values: F32 = self.inputs[layer, place - self.origin]
        return values

    def _room(self, num_rows: int) -> F32:
        return _zeros((self.num_layers, num_rows, self.sizes.input_size))
