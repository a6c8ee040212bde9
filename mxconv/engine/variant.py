"""A decoder without some of its parts, or attending to some positions: what a record says of it, as a decoder."""

from mxconv.engine.decoder import Decoder
from mxconv.engine.sink_window import SinkWindow
from mxconv.engine.skipped import Skipped
from mxconv.package.manifest import LevelRecord

VARIANTS = ("layer-skip", "swift", "early-exit", "streaming", "fewer-experts")


def variant_of(whole: Decoder, above: LevelRecord, record: LevelRecord) -> Decoder:
    """What a record of such a kind describes.

    Args:
        whole: the run's target.
        above: the target's record; of one that is a variant itself, the parts that it lacks are left out too, and it
            attends to its positions unless `record` names others.
        record: of the variant.

    Raises:
        ModelError: a layer that the model does not have.
    """
    at_first = (Skipped.at_first(each, whole.config.num_hidden_layers) for each in (above, record))
    skipped = [each for each in at_first if each is not None]
    left_out = Skipped(
        frozenset().union(*(each.attention for each in skipped)), frozenset().union(*(each.mlp for each in skipped))
    )
    seen = record if record.window is not None else above
    sinks = None if seen.window is None else SinkWindow(seen.sink or 0, seen.window)
    num_experts = above.experts if record.experts is None else record.experts
    return whole.variant(left_out, sinks, record.name, num_experts)
