"""Which places of a cache a row attends to: all of its path, a window of it, or a draft's sinks and window."""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.engine.forest import SequenceRows
from mxconv.errors import ModelError


@dataclass(frozen=True)
class SinkWindow:
    """A position attends to the first `sink` positions and to the last `window`, itself included.

    The draft reads (sink + window) / length of the keys and values, from the whole cache that it shares with its
    target, where they keep the rotations of their positions. StreamingLLM, and the drafts of MagicDec made from it,
    keep a small cache of the draft's own: that saves memory too. StreamingLLM numbers the positions in it anew, so
    that a text may be longer than the model's positions; here a position is what it is to the target.

    A layer with a sliding window of its own sees no more than that: sinks that have left it are out of sight.

    Raises:
        ModelError: a smaller number than these.

    Source:
        StreamingLLM, arXiv 2309.17453 (four sinks); MagicDec, arXiv 2408.11049 (as a draft).
    """

    sink: int  # from 0 on; the first positions get much of the attention whatever they say
    window: int  # from 1 on

    def __post_init__(self) -> None:
        for name, least in (("sink", 0), ("window", 1)):
            if (value := getattr(self, name)) < least:
                raise ModelError(f"attention {name}: {value} positions; at least {least} is required.")

    def visible(self, stop: int, own_window: int | None) -> tuple[range, range]:
        """The positions that the one before `stop` attends to in a layer with a window of its own, sinks apart."""
        own_start = max(0, stop - (own_window or stop))
        start = max(own_start, stop - self.window)
        if start <= max(self.sink, own_start):  # nothing between them
            return range(0), range(own_start, stop)
        return range(own_start, max(self.sink, own_start)), range(start, stop)


def seen_by(
    row: int, rows: SequenceRows, window: int | None, is_chunked: bool = False, sink_window: SinkWindow | None = None
) -> Sequence[int]:
    """The places in its cache that a row of a sequence attends to on its path, itself included.

    A window of rows that see more, or less, than their path is counted from the end of the cache, for all of them.

    Args:
        row: of the sequence's rows.
        rows: which lie after the length of their cache.
        window: how many positions it sees; None is all.
        is_chunked: whether windows lie side by side.
        sink_window: of a draft that sees less.
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
    if sink_window is None:
        return path[max(0, stop - (window or stop)) :]
    sinks, others = sink_window.visible(stop, window)
    near = path[others.start : others.stop]
    return [*path[sinks.start : sinks.stop], *near] if sinks else near
