"""Ways through states that would leave their arrays, or leave rows out, are refused before a pass begins."""

from typing import Any

import numpy as np
import pytest

from mxconv.engine.kv_pool import PAGE
from mxconv.kernels.engine import choose_engine

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

HIDDEN, CHANNELS, SLOTS, ROOM, LENGTH, NEW = 32, 48, 4, 16, 5, 3


def projection(rows: int, columns: int) -> Any:
    return _native.Projection(_native.dense(np.zeros((rows, columns), np.uint16), "BF16"), None)


def decoder() -> Any:
    convolution = _native.Convolution(np.ones((3, CHANNELS), np.float32), None, 0, False)
    part = _native.short_convolution(
        convolution=convolution, inputs=projection(3 * CHANNELS, HIDDEN), output=projection(HIDDEN, CHANNELS)
    )
    layer = _native.Layer([_native.Branch(part, None, False, None, 1.0)], 1.0)
    norm = _native.Norm(np.ones(HIDDEN, np.float32), None, 1e-5, False)
    head = _native.dense(np.zeros((90, HIDDEN), np.uint16), "BF16")
    return _native.Decoder(choose_engine(num_threads=1), [layer], norm, head, 1.0, 0.0, (0, 0, 0), None)


def forward(has_walk: bool = True, **changes: Any) -> None:
    """A pass of three rows after five: the state has seen four, the fifth is walked again."""
    inputs = np.zeros((1, ROOM, CHANNELS), np.float32)
    way: dict[str, Any] = {
        "windows": np.zeros((SLOTS, 1, 2, CHANNELS), np.float32),
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
    decoder().forward(x, [], [], None, logits, [rows])


def test_a_way_that_fits_is_gone() -> None:
    forward()
    forward(stop=LENGTH + NEW, branches=[])


SMALL = np.zeros((1, 6, CHANNELS), np.float32)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("a walk through the states is missing", {"has_walk": False}),
        ("a walk through the states is missing", {"length": LENGTH - 1}),
        ("windows: shape", {"windows": np.zeros((SLOTS, 2, 2, CHANNELS), np.float32)}),
        ("memories: shape", {"memories": np.zeros((3, 1, 0, 0, 0), np.float32)}),
        ("inputs: shape", {"inputs": (0, np.zeros((1, ROOM, CHANNELS - 1), np.float32))}),
        ("from a slot that there is not", {"source": SLOTS}),
        ("begins after its end", {"first": LENGTH + 1}),
        ("begins after its end", {"stop": LENGTH + NEW + 1, "branches": []}),
        ("inputs that are gone", {"inputs": (LENGTH, np.zeros((1, ROOM, CHANNELS), np.float32))}),
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
def test_one_that_does_not_is_refused(message: str, changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        forward(**changes)
