"""Parts of the native decoder that contradict each other are refused when they are made; and before a pass begins, ways
through states that would leave their arrays, or leave rows out.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mxconv.engine.kv_pool import PAGE
from mxconv.kernels.engine import choose_engine

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

HIDDEN, HEADS, KEY_VALUE_HEADS, HEAD_DIM, INNER = 32, 4, 2, 8, 48


def projection(rows: int, columns: int, bias: int | None = None) -> Any:
    matrix = _native.dense(np.zeros((rows, columns), np.uint16), "BF16")
    return _native.Projection(matrix, None if bias is None else np.zeros(bias, np.float32))


def norm(length: int) -> Any:
    return _native.Norm(np.ones(length, np.float32), None, 1e-5, False)


def attention(**changes: Any) -> Any:
    parts: dict[str, Any] = {
        "layer": 1,
        "source": 1,
        "num_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD_DIM,
        "query": projection(HEADS * HEAD_DIM, HIDDEN),
        "key": projection(KEY_VALUE_HEADS * HEAD_DIM, HIDDEN),
        "value": projection(KEY_VALUE_HEADS * HEAD_DIM, HIDDEN),
        "output": projection(HIDDEN, HEADS * HEAD_DIM),
        "fused": None,
        "scale": 1.0,
        "pattern": _native.AttentionPattern(0, 0, 0, False, 0),
        "norms": _native.HeadNorms(None, None, None, False, False, 0.0),
        "rotation": _native.HeadRotation(0, HEAD_DIM // 2, False),
        "temperature": -1,
        "logit_cap": 0.0,
        "sinks": None,
        "is_gated": False,
    }
    return _native.attention(**parts | changes)


def mlp(**changes: Any) -> Any:
    parts: dict[str, Any] = {
        "activation": "silu",
        "gate": projection(INNER, HIDDEN),
        "up": projection(INNER, HIDDEN),
        "down": projection(HIDDEN, INNER),
        "row_gate": None,
        "is_fused": False,
        "layer_input": -1,
    }
    return _native.mlp(**parts | changes)


def latent(**changes: Any) -> Any:
    parts: dict[str, Any] = {
        "layer": 0,
        "query_down": projection(12, HIDDEN),
        "query_norm": norm(12),
        "query": projection(HEADS * (6 + 4), 12),
        "down": projection(16 + 4, HIDDEN),
        "latent_norm": norm(16),
        "key_up": np.ones((HEADS, 6, 16), np.float32),
        "value_up": np.ones((HEADS, 8, 16), np.float32),
        "output": projection(HIDDEN, HEADS * 8),
        "scale": 1.0,
        "pattern": _native.AttentionPattern(0, 0, 0, False, 0),
        "rotation": _native.HeadRotation(0, 2, False),
    }
    return _native.latent_attention(**parts | changes)


def gated_expert(is_apart: bool = False) -> tuple[Any, Any, Any]:
    gate = projection(INNER if is_apart else 2 * INNER, HIDDEN)
    return gate, projection(INNER, HIDDEN) if is_apart else None, projection(HIDDEN, INNER)


def narrow_down() -> Any:
    """Of F16, which takes in rows as they are."""
    return _native.Projection(_native.dense(np.zeros((HIDDEN, INNER), np.uint16), "F16"), None)


def mixture(experts: Any = None, router: Any = None, **changes: Any) -> Any:
    routing: dict[str, Any] = {
        "router": router or projection(3, HIDDEN),
        "num_chosen": 2,
        "score": "softmax",
        "is_normalized": False,
        "correction": None,
        "groups": (1, 1),
        "multiplier": 1.0,
        "multipliers": None,
    }
    parts: dict[str, Any] = {
        "activation": "silu",
        "clamped": None,
        "is_interleaved": False,
        "scales_input": False,
        "norm": norm(HIDDEN),
        "router_norm": None,
        "is_routed_apart": False,
        "experts": [gated_expert()] * 3 if experts is None else experts,
    }
    own = {key: changes.pop(key) for key in list(changes) if key in routing}
    return _native.mixture(routing=_native.Routing(**routing | own), **parts | changes)


def short_convolution(taps: Any = None, inputs: Any = None) -> Any:
    convolution = _native.Convolution(np.ones((3, INNER), np.float32) if taps is None else taps, None, 0)
    return _native.short_convolution(
        convolution=convolution, inputs=inputs or projection(3 * INNER, HIDDEN), output=projection(HIDDEN, INNER)
    )


def branch(part: Any, before: Any = None, is_parallel: bool = False, after: Any = None) -> Any:
    return _native.Branch(part, before, is_parallel, after, 1.0)


def screen(projected: Any = None, scores: Any = None, num_candidates: int = 2) -> Any:
    return _native.HeadScreen(projected or projection(16, HIDDEN), scores or projection(90, 16), num_candidates)


def decoder(*branches: Any, cache: tuple[int, int, int] = (2, KEY_VALUE_HEADS, HEAD_DIM), screen: Any = None) -> Any:
    head = _native.dense(np.zeros((90, HIDDEN), np.uint16), "BF16")
    layer = _native.Layer(list(branches), 1.0)
    return _native.Decoder(choose_engine(num_threads=1), [layer], norm(HIDDEN), head, 1.0, 0.0, cache, screen)


def test_parts_that_fit_make_a_decoder() -> None:
    decoder(branch(attention(), norm(HIDDEN)), branch(mlp(), norm(HIDDEN), True, norm(HIDDEN)))
    decoder(branch(attention(source=0, key=None, value=None)))
    decoder(branch(attention(is_gated=True, query=projection(2 * HEADS * HEAD_DIM, HIDDEN))))
    decoder(branch(short_convolution()), branch(mlp()))
    decoder(branch(attention(value=None)), branch(mlp(gate=None)), branch(mlp(up=None, layer_input=0)))
    decoder(branch(attention()), branch(mlp(row_gate=projection(1, HIDDEN))))
    decoder(branch(mlp()), screen=screen())
    decoder(branch(latent()), branch(_native.joined([(mixture(), norm(HIDDEN)), (mlp(), None)])), cache=(1, 1, 20))


REFUSED: dict[str, tuple[str, Callable[[], Any]]] = {
    "a matrix of other rows": (r"key: shape \(32, 32\); \(16, 32\)", lambda: attention(key=projection(32, HIDDEN))),
    "a matrix of other columns": (r"gate: shape", lambda: mlp(gate=projection(INNER, 31))),
    "a short bias": ("bias: shape", lambda: projection(8, 8, bias=7)),
    "a norm of another length": (
        "query_norm: 9 weights; 8 are required",
        lambda: attention(norms=_native.HeadNorms(norm(9), None, None, False, False, 0.0)),
    ),
    "a norm of rows that spans a head": (
        "query_norm: 8 weights; 32 are required",
        lambda: attention(norms=_native.HeadNorms(norm(8), None, None, True, False, 0.0)),
    ),
    "a norm before of another length": ("norm: 31 weights", lambda: branch(mlp(), norm(31))),
    "a later norm of another length": ("sum_norm: 31 weights", lambda: branch(mlp(), None, False, norm(31))),
    "a bias of a norm that is not centered": (
        "takes the mean away",
        lambda: _native.Norm(np.ones(3, np.float32), np.ones(3, np.float32), 1e-5, False),
    ),
    "heads that share unevenly": ("a multiple of num_key_value_heads", lambda: attention(num_key_value_heads=3)),
    "keys of a later layer": ("source must be", lambda: attention(source=2, key=None, value=None)),
    "keys of nobody": ("keys are neither", lambda: attention(key=None, value=None)),
    "another's keys and its own": ("one too many", lambda: attention(source=0)),
    "fused and apart": ("one too many", lambda: attention(fused="blocks")),
    "a fused matrix that is too small": (
        "query: shape",
        lambda: attention(fused="blocks", key=None, value=None),
    ),
    "fused otherwise": ("blocks, heads or None", lambda: attention(fused="rows")),
    "fused by heads that share keys": ("a key and a value each", lambda: attention(fused="heads")),
    "more pairs than values": ("more pairs rotate", lambda: attention(rotation=_native.HeadRotation(0, 5, False))),
    "a window that is none": (
        "window must be",
        lambda: attention(pattern=_native.AttentionPattern(-1, 0, 0, False, 0)),
    ),
    "gated queries that are fused": (
        "neither fused",
        lambda: attention(is_gated=True, fused="blocks", key=None, value=None),
    ),
    "a gate that is missing": (r"query: shape \(32, 32\); \(64, 32\)", lambda: attention(is_gated=True)),
    "taps of other channels": ("taps: shape", lambda: short_convolution(taps=np.ones((3, 47), np.float32))),
    "a convolution without a tap": ("needs a tap", lambda: short_convolution(taps=np.ones((0, INNER), np.float32))),
    "gates of another size": ("inputs: shape", lambda: short_convolution(inputs=projection(INNER, HIDDEN))),
    "states of two sizes": (
        "states of different sizes",
        lambda: decoder(branch(short_convolution()), branch(short_convolution(taps=np.ones((4, INNER), np.float32)))),
    ),
    "an MLP without a matrix": ("takes rows in", lambda: mlp(gate=None, up=None)),
    "a gate of nothing": ("the layer's own inputs", lambda: mlp(up=None)),
    "a fused MLP without its gate": ("both gate and up", lambda: mlp(gate=None, is_fused=True)),
    "a gate of two rows": ("row_gate: shape", lambda: mlp(row_gate=projection(2, HIDDEN))),
    "chunks of no size": (
        "chunks need a window",
        lambda: attention(pattern=_native.AttentionPattern(0, 0, 0, True, 0)),
    ),
    "a clip below zero": (
        "clip must be",
        lambda: attention(norms=_native.HeadNorms(None, None, None, False, False, -1.0)),
    ),
    "sinks of other heads": ("sinks: shape", lambda: attention(sinks=np.zeros(HEADS + 1, np.float32))),
    "latent vectors that all rotate": ("more pairs rotate", lambda: latent(rotation=_native.HeadRotation(0, 3, False))),
    "latent queries of another rank": (
        "query: shape",
        lambda: latent(query_down=projection(11, HIDDEN), query_norm=None),
    ),
    "values of other latent vectors": ("value_up: shape", lambda: latent(value_up=np.ones((HEADS, 8, 15), np.float32))),
    "latent vectors in a smaller cache": (
        "do not fit into the cache",
        lambda: decoder(branch(latent()), cache=(1, 1, 19)),
    ),
    "more experts than there are": ("cannot be chosen", lambda: mixture(num_chosen=4)),
    "fewer experts than the router knows": ("each row of the router", lambda: mixture(router=projection(4, HIDDEN))),
    "multipliers of other experts": ("multipliers: shape", lambda: mixture(multipliers=np.ones(4, np.float32))),
    "experts of two forms": (
        "rows in one form",
        lambda: mixture(experts=[gated_expert(), gated_expert(), (*gated_expert()[:2], narrow_down())]),
    ),
    "experts in turn that are apart": (
        "what takes turns is one matrix",
        lambda: mixture(experts=[gated_expert(True)] * 3, is_interleaved=True),
    ),
    "draws at no temperature": ("a temperature above 0", lambda: _native.Draws(0.0, 0, 1.0, 0.0, 1, 1)),
    "a limit below zero": ("a limit of gates", lambda: mixture(clamped=(1.7, -1.0))),
    "attention that is joined": ("looks nothing up", lambda: _native.joined([(attention(), None)])),
    "nothing that is joined": ("parts to join", lambda: _native.joined([])),
    "three side by side": (
        "three branches side by side",
        lambda: decoder(branch(mlp()), branch(mlp(), None, True), branch(mlp(), None, True)),
    ),
    "another hidden size": (
        "another hidden size",
        lambda: decoder(branch(mlp(gate=None, up=projection(INNER, 16), down=projection(16, INNER)))),
    ),
    "a screen of other rows": (
        "screen.projection: shape",
        lambda: decoder(branch(mlp()), screen=screen(projection(16, 31))),
    ),
    "scores of other tokens": (
        "screen.scores: shape",
        lambda: decoder(branch(mlp()), screen=screen(None, projection(91, 16))),
    ),
    "scores of another rank": (
        "screen.scores: shape",
        lambda: decoder(branch(mlp()), screen=screen(None, projection(90, 17))),
    ),
    "a screen that lets nothing through": ("a candidate through at least", lambda: screen(num_candidates=0)),
    "a cache of too few layers": ("do not fit into the cache", lambda: decoder(branch(attention()), cache=(1, 2, 8))),
    "a cache of smaller heads": ("do not fit into the cache", lambda: decoder(branch(attention()), cache=(2, 2, 6))),
    "one table of two sizes": (
        "one table and of different sizes",
        lambda: decoder(branch(attention()), branch(attention(rotation=_native.HeadRotation(0, 3, False)))),
    ),
    "layers' inputs of two sizes": (
        "inputs of layers of different sizes",
        lambda: decoder(
            branch(mlp(up=None, layer_input=0)),
            branch(mlp(up=None, gate=projection(16, HIDDEN), down=projection(HIDDEN, 16), layer_input=1)),
        ),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parts_that_do_not_fit_are_refused(case: str) -> None:
    message, make = REFUSED[case]
    with pytest.raises((TypeError, ValueError), match=message):
        make()


# ---- ways through states ----

SLOTS, ROOM, LENGTH, NEW = 4, 16, 5, 3


def forward_walk(has_walk: bool = True, **changes: Any) -> None:
    """A pass of three rows after five: the state has seen four, the fifth is walked again."""
    inputs = np.zeros((1, ROOM, INNER), np.float32)
    way: dict[str, Any] = {
        "windows": np.zeros((SLOTS, 1, 2, INNER), np.float32),
        "memories": np.zeros((SLOTS, 1, 0, 0, 0), np.float32),
        "inputs": (0, inputs),
        "kept": (0, inputs),
        "source": 1,
        "first": LENGTH - 1,
        "stop": LENGTH + 1,
        "length": LENGTH,
        "saves": [(LENGTH, 2)],
        "branches": [(LENGTH + 1, LENGTH), (LENGTH + 2, LENGTH)],
    }
    walk = _native.Walk(**way | changes) if has_walk else None
    pages = _native.Pages("fp32", [np.zeros((0, 2, 0, 1, PAGE, 0), np.float32)], np.zeros(1, np.int32))
    rows = _native.SequenceTokens(pages, LENGTH, NEW, NEW, walk=walk)
    x, logits = np.zeros((NEW, HIDDEN), np.float32), np.empty((NEW, 90), np.float32)
    decoder(branch(short_convolution()), cache=(0, 0, 0)).forward(x, [], [], None, logits, [rows])


def test_a_way_that_fits_is_gone() -> None:
    forward_walk()
    forward_walk(stop=LENGTH + NEW, branches=[])


SMALL = np.zeros((1, 6, INNER), np.float32)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("a walk through the states is missing", {"has_walk": False}),
        ("a walk through the states is missing", {"length": LENGTH - 1}),
        ("windows: shape", {"windows": np.zeros((SLOTS, 2, 2, INNER), np.float32)}),
        ("memories: shape", {"memories": np.zeros((3, 1, 0, 0, 0), np.float32)}),
        ("inputs: shape", {"inputs": (0, np.zeros((1, ROOM, INNER - 1), np.float32))}),
        ("from a slot that there is not", {"source": SLOTS}),
        ("begins after its end", {"first": LENGTH + 1}),
        ("begins after its end", {"stop": LENGTH + NEW + 1, "branches": []}),
        ("inputs that are gone", {"inputs": (LENGTH, np.zeros((1, ROOM, INNER), np.float32))}),
        ("no room for inputs", {"kept": (0, SMALL)}),
        ("a save in a slot", {"saves": [(LENGTH, 0)]}),
        ("a save in a slot", {"saves": [(LENGTH, SLOTS)]}),
        ("a save of what", {"saves": [(LENGTH + 2, 2)]}),
        ("do not ascend", {"branches": [(LENGTH + 2, LENGTH), (LENGTH + 1, LENGTH)]}),
        ("do not ascend", {"branches": [(LENGTH + 1, LENGTH), (LENGTH + NEW, LENGTH)]}),
        ("below a row that is not walked", {"branches": [(LENGTH + 1, LENGTH - 1), (LENGTH + 2, LENGTH)]}),
        ("new rows that are not walked", {"branches": [(LENGTH + 1, LENGTH)]}),
    ],
)
def test_a_way_that_does_not_is_refused(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        forward_walk(**changes)
