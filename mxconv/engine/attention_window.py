"""Which places of a cache a row attends to: all of its path, a window of it, or what a draft sees of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.engine.kv_pool import PAGE
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.errors import ModelError

LEAST_RETRIEVING = 64  # positions of a window beside retrieved pages: no branch of a tree lies before it


@dataclass(frozen=True)
class SinkWindow:
    """A position attends to the first `sink` positions and to the last `window`, itself included.

    The draft reads (sink + window) / length of the keys and values, from the whole cache that it shares with its
    target, where they keep the rotations of their positions. StreamingLLM, and the drafts of MagicDec made from it,
    keep a small cache of the draft's own: that saves memory too. StreamingLLM numbers the positions in it anew, so
    that a text may be longer than the model's positions; here a position is what it is to the target.

    A layer with a sliding window of its own sees no more than that: sinks that have left it are not seen.

    Raises:
        ModelError: a smaller number than these.

    Source:
        StreamingLLM, arXiv 2309.17453 (four sinks); MagicDec, arXiv 2408.11049 (as a draft).
    """

    sink: int  # from 0 on; the first positions get much of the attention whatever they say
    window: int  # from 1 on

    def __post_init__(self) -> None:
        self._require("sink", self.sink, 0)
        self._require("window", self.window, 1)

    def visible(self, stop: int, own_window: int | None) -> tuple[range, range]:
        """The positions that the one before `stop` attends to in a layer with a window of its own, sinks apart."""
        own_start = max(0, stop - (own_window or stop))
        start = max(own_start, stop - self.window)
        if start <= max(self.sink, own_start):  # nothing between them
            return range(0), range(own_start, stop)
        return range(own_start, max(self.sink, own_start)), range(start, stop)

    def _require(self, name: str, value: int, least: int, what: str = "positions") -> None:
        if value < least:
            raise ModelError(f"attention {name}: {value} {what}; at least {least} is required.")


@dataclass(frozen=True)
class RetrievedPages(SinkWindow):
    """Each row also attends to so many pages of the cache between the two, which are whole pages then too.

    Layers with a window of their own attend as in the target. Every head of keys chooses pages for its queries by an
    upper bound of their scores, made of the greatest and the least of each number of a page's keys.

    Source:
        TriForce, arXiv 2404.11912 (retrieved pages as a draft); Quest, arXiv 2406.10774 (the bound).
    """

    pages: int  # from 1 on; the window has 64 positions at least

    def __post_init__(self) -> None:
        self._require("sink", self.sink, 0)
        self._require("window", self.window, LEAST_RETRIEVING)
        self._require("pages", self.pages, 1, "pages")

    def retrieved(self, queries: F32, keys: F32) -> I64:
        """The positions that a row attends to with one head of keys, ascending.

        Args:
            queries: (n, head_dim), all that share the head.
            keys: (num_positions, head_dim), of the row's path from its first position on, itself included.
        """
        first = -(-min(self.sink, len(keys)) // PAGE)
        last = max(max(0, len(keys) - self.window) // PAGE, first)
        positions = np.arange(len(keys))
        if last - first <= self.pages:
            return positions
        between = keys[first * PAGE : last * PAGE].reshape(last - first, PAGE, -1)
        raised, lowered = np.maximum(queries, 0).sum(axis=0), np.minimum(queries, 0).sum(axis=0)
        bounds = between.max(axis=1) @ raised + between.min(axis=1) @ lowered
        chosen = first + np.argsort(-bounds, kind="stable")[: self.pages]
        pages = positions // PAGE
        return positions[(pages < first) | (pages >= last) | np.isin(pages, chosen)]


def places_seen(
    row: int, rows: SequenceRows, window: int | None, is_chunked: bool = False, pattern: SinkWindow | None = None
) -> Sequence[int]:
    """The places in its cache that a row of a sequence attends to on its path, itself included.

    A window of rows that see more, or less, than their path is counted from the end of the cache, for all of them.

    Args:
        row: of the sequence's rows.
        rows: which lie after the length of their cache.
        window: how many positions it sees; None is all.
        is_chunked: whether windows lie side by side.
        pattern: of a draft that sees less; one that retrieves pages chooses from these places by head.
    """
    length, tree = rows.cache.length, rows.branches
    if rows.sees == "cache":
        return range(max(0, length - 1 - (window or length)), length)
    if rows.sees != "path":
        is_whole = window is None or rows.sees == "block"
        return range(max(0, length - (window or length)), length + (rows.num_rows if is_whole else row + 1))
    path: Sequence[int] = range(length + row + 1)
    if not tree.is_chain:
        start = length - tree.num_cached
        path = [*range(start), *(start + above for above in tree.path(tree.num_cached + row))]
    stop = len(path)
    if window is not None and is_chunked:  # what is in no place precedes these
        window = min(stop, (stop - 1 + rows.cache.num_left_out) % window + 1)
    if pattern is None or isinstance(pattern, RetrievedPages):
        return path[max(0, stop - (window or stop)) :]
    sinks, others = pattern.visible(stop, window)
    near = path[others.start : others.stop]
    return [*path[sinks.start : sinks.stop], *near] if sinks else near
