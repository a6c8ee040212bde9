"""Attention to the first and the last positions alone: what a draft reads of a long KV cache."""

from dataclasses import dataclass

from mxconv.errors import ModelError


@dataclass(frozen=True)
class SinkWindow:
    """A position attends to the first `sink` positions and to the last `window`, itself included.

    The draft reads (sink + window) / length of the keys and values, from the whole cache that it shares with its
    target, where they keep the rotations of their positions. StreamingLLM, and the drafts of MagicDec made from it,
    keep a small cache of the draft's own: that saves memory too. StreamingLLM numbers the positions in it anew, so
    that a text may be longer than the model's positions; here a position is what it is to the target.

    A layer with a sliding window of its own sees no more than that: sinks that have left it are out of sight.

    Args:
        sink: from 0 on. The first positions get much of the attention whatever they say.
        window: from 1 on.

    Raises:
        ModelError: another number.

    Source:
        StreamingLLM, arXiv 2309.17453 (four sinks); MagicDec, arXiv 2408.11049 (as a draft).
    """

    sink: int
    window: int

    def __post_init__(self) -> None:
        for name, least in (("sink", 0), ("window", 1)):
            if (value := getattr(self, name)) < least:
                raise ModelError(f"attention {name}: {value} positions; at least {least} is required.")

    def visible(self, stop: int, own_window: int | None) -> tuple[range, range]:
        """The positions that the one before `stop` attends to: sinks and the others, in order and apart.

        Args:
            stop: how many positions there are up to itself.
            own_window: of the layer; None is all.
        """
        own_start = max(0, stop - (own_window or stop))
        start = max(own_start, stop - self.window)
        if start <= max(self.sink, own_start):  # nothing between them
            return range(0), range(own_start, stop)
        return range(own_start, max(self.sink, own_start)), range(start, stop)
