"""Which places of a cache a row attends to."""

from collections.abc import Sequence

from mxconv.engine.forest import SequenceRows
from mxconv.engine.sink_window import SinkWindow


def seen_by(
    row: int, rows: SequenceRows, window: int | None, is_chunked: bool = False, sink_window: SinkWindow | None = None
) -> Sequence[int]:
    """What a row may see of its path, itself included.

    Args:
        row: of the sequence's rows.
        rows: with their cache, where they lie behind its length.
        window: how many positions it sees; None is all.
        is_chunked: whether windows stand side by side.
        sink_window: of a draft that sees less.
    """
    length, tree = rows.cache.length, rows.branches
    path: Sequence[int] = range(length + row + 1)
    if not tree.is_chain:
        start = length - tree.num_cached
        path = [*range(start), *(start + above for above in tree.path(tree.num_cached + row))]
    stop = len(path)
    if window is not None and is_chunked:  # what is in no place stood before these
        window = min(stop, (stop - 1 + rows.cache.num_left_out) % window + 1)
    if sink_window is None:
        return path[max(0, stop - (window or stop)) :]
    sinks, others = sink_window.visible(stop, window)
    near = path[others.start : others.stop]
    return [*path[sinks.start : sinks.stop], *near] if sinks else near
