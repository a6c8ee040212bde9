"""The paces of a hierarchy's levels."""

from collections.abc import Mapping, Sequence

from mxconv.speculation.pacing.adaptive_pace import MAX_ADAPTIVE_NODES, NO_GROWERS, NO_READS, AdaptivePace
from mxconv.speculation.pacing.pace import FixedPace, Pace
from mxconv.speculation.pacing.row_growth import Growth


def paces(
    adaptive: bool,
    num_draft_tokens: Sequence[int],
    sets_floors: bool = True,
    growers: Sequence[Mapping[int, bool]] = (),
    reads: Sequence[Mapping[int, float]] = (),
    num_nodes: int | None = None,
    growths: Sequence[Growth | None] = (),
) -> list[Pace]:
    """The pace of every level that has a draft, the target's first.

    Args:
        adaptive: whether levels choose for themselves, and between all cheaper levels.
        num_draft_tokens: what each asks for otherwise.
        sets_floors: whether adaptive levels choose confidence thresholds too.
        growers: of each of these levels, the drafts that grow trees for it, the next one being 0, and whether each is
            a model.
        reads: of each of these levels, what passes of models among its drafts are expected to take, in its own; 0 of
            those that share its cache.
        growths: of each of these levels, what more rows of its passes read; empty where none reads more.
        num_nodes: the most of a tree; 0 is none. None leaves it to prices, and fixed lengths to chains.
    """
    if not adaptive:
        return [FixedPace(number, num_nodes or 0) for number in num_draft_tokens]
    count = len(num_draft_tokens)
    most = MAX_ADAPTIVE_NODES if num_nodes is None else num_nodes
    return [
        AdaptivePace(
            count - index,
            sets_floors=sets_floors,
            growers=growers[index] if growers and most else NO_GROWERS,
            reads=reads[index] if reads else NO_READS,
            most_nodes=most,
            growth=growths[index] if growths else None,
        )
        for index in range(count)
    ]
