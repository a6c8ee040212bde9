"""Whatever was tried and taken back, a row's state is that of its path, bit for bit."""

from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_values
from mxconv.engine.cache import KVCache
from mxconv.engine.state_cache import LayerState, most_bytes
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError
from mxconv.speculation.session import borrowed

NUM_LAYERS = 2
LAYERS = range(NUM_LAYERS)
CONFIG: ModelConfig = describe_values(
    {
        "model_type": "mamba2",
        "vocab_size": 8,
        "hidden_size": 2,
        "expand": 2,
        "num_hidden_layers": NUM_LAYERS,
        "num_heads": 2,
        "head_dim": 2,
        "state_size": 1,
        "n_groups": 1,
        "conv_kernel": 3,
    }
)
SIZES = CONFIG.state_sizes
assert SIZES is not None


def step(state: LayerState, inputs: np.ndarray) -> np.ndarray:
    """Sums whose bits show every row and its place; gives all of the state."""
    channels, memory, window = inputs[: SIZES.num_channels], state.memory, state.window
    memory *= np.float32(0.7)
    memory += (channels[:4].reshape(2, 2, 1) + window.sum()) * inputs[-1]
    window[:-1] = window[1:]
    window[-1] = channels
    return np.concatenate([memory.ravel(), window.ravel()])


class Row:
    """A row after another, and the states of all layers after both: those of the path alone."""

    def __init__(self, number: int, parent: "Row | None") -> None:
        self.inputs = [np.random.default_rng([number, layer]).random(SIZES.input_size, np.float32) for layer in LAYERS]
        window = np.zeros((SIZES.kernel_size - 1, SIZES.num_channels), np.float32)
        empty = LayerState(window, np.zeros(SIZES.memory, np.float32))
        self.states = [(parent.states[layer] if parent else empty).copy() for layer in LAYERS]
        self.given = [step(state, inputs) for state, inputs in zip(self.states, self.inputs, strict=True)]


class Text:
    """A cache, and the rows that it should hold."""

    def __init__(self) -> None:
        self.cache = KVCache(CONFIG)
        self.rows: list[Row] = []
        self._numbers = count()

    def feed(self, num_rows: int, tree: Tree | None = None, num_wanted: int = 0, num_layers: int = 2) -> None:
        """A pass of new rows, each compared with what its path alone gives; one of fewer layers fails half-way."""
        branches = tree or Tree.chain(num_rows)
        start = len(self.rows) - branches.num_cached
        rows = self.rows[start:]
        for parent in branches.parents[branches.num_cached :]:
            above = rows[parent] if parent >= 0 else self.rows[start - 1] if start else None
            rows.append(Row(next(self._numbers), above))
        new = rows[branches.num_cached :]
        assert len(new) == num_rows
        self.cache.begin(branches, num_wanted)
        for layer in LAYERS[:num_layers]:
            found = self.cache.states.run(layer, np.array([row.inputs[layer] for row in new]), step)
            np.testing.assert_array_equal(found, [row.given[layer] for row in new])
        if num_layers == NUM_LAYERS:
            self.cache.advance(num_rows)
            self.rows += new

    def keep(self, start: int, rows: Sequence[int]) -> None:
        self.cache.keep(start, rows)
        self.rows[start:] = [self.rows[start + row] for row in rows]

    def truncate(self, length: int) -> None:
        self.cache.truncate(length)
        del self.rows[length:]


def try_something(text: Text, draw: st.DataObject, depth: int = 0, floor: int = 0) -> None:
    """One thing that decoders and drafts do with a cache; a borrower leaves what is before its `floor`."""
    kind = draw.draw(st.sampled_from(["chain", "prompt", "tree", "grown", "cut", "failed", *(["lent"] * (depth < 2))]))
    if kind == "chain":
        start, number = len(text.rows), draw.draw(st.integers(1, 9))
        text.feed(number, num_wanted=number)
        text.keep(start, range(draw.draw(st.integers(0, number))))
    elif kind == "prompt":
        text.feed(draw.draw(st.integers(1, 90)), num_wanted=1)
    elif kind == "tree":
        start, parents = len(text.rows), parents_of(draw, 0, draw.draw(st.integers(1, 8)))
        text.feed(len(parents), Tree(parents), len(parents))
        keep_a_path(text, start, parents, draw)
    elif kind == "grown":
        start, parents = len(text.rows), []
        for _ in range(draw.draw(st.integers(1, 4))):
            num_cached = len(parents)
            parents += parents_of(draw, num_cached, draw.draw(st.integers(1, 4)))
            number = len(parents) - num_cached
            text.feed(number, Tree(parents[:], num_cached), number)
        keep_a_path(text, start, parents, draw)
    elif kind == "cut":
        length = max(len(text.rows) - draw.draw(st.integers(0, 70)), floor)
        if text.cache.reachable(length) >= floor:
            text.truncate(text.cache.reachable(length))
    elif kind == "failed":
        text.feed(draw.draw(st.integers(1, 80)), num_layers=1)
    else:
        length, rows = len(text.rows), list(text.rows)
        wanted = max(length - draw.draw(st.sampled_from([0, 0, 3, 20, 200])), floor)
        start = text.cache.reachable(wanted)
        if start < floor:
            return
        with borrowed(text.cache, start, length - start):
            del text.rows[start:]
            for _ in range(draw.draw(st.integers(1, 3))):
                try_something(text, draw, depth + 1, start)
        text.rows[:] = rows


def parents_of(draw: st.DataObject, first: int, count: int) -> list[int]:
    return [draw.draw(st.integers(-1, row - 1)) for row in range(first, first + count)]


def keep_a_path(text: Text, start: int, parents: Sequence[int], draw: st.DataObject) -> None:
    row = draw.draw(st.integers(-1, len(parents) - 1))
    text.keep(start, Tree(parents).path(row))


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_states_are_those_of_the_path_after_whatever_was_tried(data: st.DataObject) -> None:
    text = Text()
    for _ in range(data.draw(st.integers(1, 12))):
        try_something(text, data)
        assert text.cache.length == len(text.rows)
    text.feed(1)


def test_a_pass_that_failed_is_forgotten_where_others_begin_anew() -> None:
    text = Text()
    text.feed(65, num_wanted=1)  # of which the first state is gone
    text.feed(66, num_layers=1)
    rows = list(text.rows)
    with borrowed(text.cache, 0, 65):
        text.rows.clear()
        text.feed(1, num_wanted=1)
    text.rows[:] = rows
    text.feed(1)


def test_at_least_64_rows_can_be_taken_back_from_a_long_text_and_more_where_they_wanted_logits() -> None:
    text = Text()
    text.feed(500, num_wanted=1)
    assert text.cache.reachable(436) == 436
    assert text.cache.reachable(435) == 0
    for _ in range(300):
        text.feed(1)
        length = len(text.rows)
        assert text.cache.reachable(length - 64) == length - 64
    text.feed(150, num_wanted=150)
    text.keep(800, range(2))
    text.feed(1)


def test_a_text_whose_states_are_gone_says_so() -> None:
    text = Text()
    text.feed(300, num_wanted=1)
    with pytest.raises(ModelError, match=r"truncation to 7 positions, whose states are gone; 300 are there"):
        text.truncate(7)
    text.truncate(0)
    text.feed(3)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 64)), min_size=1, max_size=60), st.integers(1, 512))
def test_a_text_takes_no_more_than_is_counted_for_it(rounds: list[tuple[int, int]], piece: int) -> None:
    """A prompt in pieces, then rounds of which some rows stay."""
    assert SIZES is not None
    cache = KVCache(CONFIG)
    assert cache.states is not None
    most = 0
    for num_rows, num_wanted, num_kept in [*[(piece, 1, piece)] * 5, *((n, n, min(n, kept)) for n, kept in rounds)]:
        start = cache.length
        cache.begin(Tree.chain(num_rows), num_wanted)
        cache.advance(num_rows)
        cache.truncate(start + num_kept)
        most = max(most, cache.states.num_bytes)
    assert most <= most_bytes(SIZES, NUM_LAYERS)
