"""States of a sequence and its way through a pass, as the native decoder takes them."""

from mxconv.engine.recurrent.state_cache import StateCache
from mxconv.kernels import _native


def native_walk(states: StateCache | None) -> _native.Walk | None:
    """The pass that has begun; the native decoder goes its way and writes where `StateCache.run` would."""
    if states is None:
        return None
    walk = states.of_this_pass
    return _native.Walk(
        windows=states.windows,
        memories=states.memories,
        inputs=(states.origin, states.inputs),
        kept=states.kept,
        source=walk.source,
        first=walk.first,
        stop=walk.stop,
        length=walk.length,
        saves=list(walk.saves),
        branches=list(walk.branches),
    )
