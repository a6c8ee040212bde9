"""The trained model on the native decoder beside NumPy's, and every refusal; families: test_families.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_models import assert_rounded_alike, native_copy, rounding_as_native
from row_invariance import assert_same_bits

from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.source import Checkpoint, open_checkpoint
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.engine import choose_engine, native_names
from mxconv.text.tokenizer import Tokenizer

IMPLEMENTATIONS = native_names()
TRAINED = Path(__file__).parents[2] / "examples/models/pylib-1.5m"
TEXT = '''def read(path, encoding="utf-8"):
    """Return the text of a file.

    Raises OSError if the file cannot be opened.
    """
    with open(path, encoding=encoding) as file:
        return file.read()
'''

pytestmark = pytest.mark.skipif(not IMPLEMENTATIONS, reason="the extension is not built on this machine")


@pytest.fixture(params=IMPLEMENTATIONS)
def matrices(request: pytest.FixtureRequest) -> Matrices:
    """Every implementation, on two threads."""
    return Matrices(choose_engine(request.param, 2))


@pytest.fixture(scope="module")
def checkpoint() -> Iterator[Checkpoint]:
    with open_checkpoint(TRAINED) as opened:
        yield opened


def logits(decoder: Decoder, ids: list[int], last_only: bool = False) -> np.ndarray:
    return decoder.forward(ids, KVCache(decoder.config), last_only)


def test_the_trained_model_says_what_it_says_on_numpy(checkpoint: Checkpoint, matrices: Matrices) -> None:
    config = describe_file(TRAINED / "config.json")
    ids = Tokenizer.from_folder(TRAINED).encode(TEXT)
    weights = dense_weights(checkpoint.tensors, config)
    unrounded, expected = (
        logits(Decoder(config, each, "numpy"), ids) for each in (weights, rounding_as_native(weights))
    )
    found = logits(native_copy(config, weights, matrices), ids)
    assert_rounded_alike(found, expected, unrounded, "trained")
    best = np.sort(unrounded, axis=-1)[:, -2:]
    is_clear = best[:, 1] - best[:, 0] > 4 * np.abs(expected - unrounded).max(axis=-1)  # twice what both may err by
    assert is_clear.mean() > 0.5
    assert (found.argmax(-1) == unrounded.argmax(-1))[is_clear].all()


def test_vectors_of_any_layout_are_taken(tiny_model: Callable[[str], Any]) -> None:
    tiny, matrices = tiny_model("qwen3, biases and window"), Matrices(choose_engine(num_threads=2))
    config = tiny.config
    strided = {name: np.repeat(vector, 2)[::2] for name, vector in tiny.weights.vectors.items()}
    ids = tiny.text(9)
    expected = logits(native_copy(config, tiny.weights, matrices), ids)
    found = logits(native_copy(config, ModelWeights(tiny.weights.matrices, strided), matrices), ids)
    assert_same_bits(found, expected, "strided vectors")


def arguments(decoder: Any, num_tokens: int = 3) -> dict[str, Any]:
    """Of a call that works."""
    config = decoder.config
    half = np.zeros((num_tokens, config.head_dim // 2), np.float32)
    return {
        "x": np.zeros((num_tokens, config.hidden_size), np.float32),
        "rotations": [(half, half.copy())],
        "temperatures": [],
        "layer_inputs": None,
        "dtype": "fp32",
        "slabs": KVCache(config, 64).pool.pages.arrays,
        "numbers": np.zeros(1, np.int32),
        "length": 4,
        "num_tokens": num_tokens,
        "num_logits": num_tokens,
        "logits": np.zeros((num_tokens, config.vocab_size), np.float32),
        "stages": [0, 4],
        "states": np.zeros((2, num_tokens, config.hidden_size), np.float32),
    }


OF_PASS = ("x", "rotations", "temperatures", "layer_inputs", "logits")


def native_pass(decoder: Any, **arguments: Any) -> None:
    from mxconv.kernels import _native

    of_pass = {name: arguments.pop(name) for name in OF_PASS}
    pages = _native.Pages(*(arguments.pop(name) for name in ("dtype", "slabs", "numbers")))
    decoder.handle.forward(**of_pass, sequences=[_native.SequenceTokens(pages, **arguments)])


WRONG: dict[str, tuple[type[Exception], str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "wide x": (TypeError, "x: shape", lambda a: {"x": np.zeros((3, 49), np.float32)}),
    "x in float64": (TypeError, "incompatible", lambda a: {"x": a["x"].astype(np.float64)}),
    "read-only x": (TypeError, "incompatible", lambda a: {"x": read_only(a["x"])}),
    "transposed x": (TypeError, "x: strides", lambda a: {"x": np.zeros((48, 3), np.float32).T}),
    "short sines": (TypeError, "sines: shape", lambda a: {"rotations": [(a["rotations"][0][0], a["x"][:2, :6])]}),
    "no rotations": (ValueError, "rotations are missing", lambda a: {"rotations": []}),
    "a layer too few": (TypeError, "slab: shape", lambda a: {"slabs": [slab[:2].copy() for slab in a["slabs"]]}),
    "other pages": (
        TypeError,
        "slab: shape",
        lambda a: {"slabs": [slab[:, :, :, :, :63].copy() for slab in a["slabs"]]},
    ),
    "read-only pages": (TypeError, "to write to", lambda a: {"slabs": [read_only(slab.copy()) for slab in a["slabs"]]}),
    "pages in pieces": (TypeError, "slab: strides", lambda a: {"slabs": [np.asfortranarray(a["slabs"][0])]}),
    "pages of another dtype": (TypeError, "slabs must be arrays of the pages' dtype", lambda a: {"dtype": "bf16"}),
    "no such dtype": (ValueError, "dtype must be fp32, bf16 or fp16", lambda a: {"dtype": "fp8"}),
    "no such page": (ValueError, "a page that there is not", lambda a: {"numbers": np.ones(1, np.int32)}),
    "a page before the first": (
        ValueError,
        "a page that there is not",
        lambda a: {"numbers": np.array([-1], np.int32)},
    ),
    "no pages": (ValueError, "do not fit", lambda a: {"numbers": np.zeros(0, np.int32)}),
    "no slabs": (ValueError, "a page that there is not", lambda a: {"slabs": []}),
    "page numbers of another dtype": (TypeError, "incompatible", lambda a: {"numbers": np.zeros(1, np.int64)}),
    "a full cache": (ValueError, "do not fit", lambda a: {"length": 62}),
    "a negative length": (ValueError, "do not fit", lambda a: {"length": -1}),
    "narrow logits": (TypeError, "logits: shape", lambda a: {"logits": a["logits"][:, :95]}),
    "other logits": (TypeError, "logits: shape", lambda a: {"logits": np.zeros((4, 96), np.float32)}),
    "more logits": (ValueError, "more logits", lambda a: {"num_logits": 4}),
    "fewer logits than none": (ValueError, "more logits", lambda a: {"num_logits": -1}),
    "no tokens": (ValueError, "do not fit", lambda a: {"num_tokens": 0}),
    "more tokens than x": (TypeError, "states: shape", lambda a: {"num_tokens": 4}),
    "more tokens than x, no states": (
        TypeError,
        "x: shape",
        lambda a: {"num_tokens": 4, "stages": [], "states": None},
    ),
    "more tokens than numbers": (ValueError, "do not fit", lambda a: {"num_tokens": 2**62}),
    "a stage without states": (ValueError, "states and their stages", lambda a: {"states": None}),
    "states without a stage": (ValueError, "states and their stages", lambda a: {"stages": []}),
    "a stage after the last": (ValueError, "a stage that there is not", lambda a: {"stages": [0, 5]}),
    "a stage before the first": (ValueError, "a stage that there is not", lambda a: {"stages": [-1, 1]}),
    "read-only states": (TypeError, "incompatible", lambda a: {"states": read_only(a["states"])}),
    "short masks": (TypeError, "masks: shape", lambda a: {"masks": np.ones(2, np.uint64), "mask_start": 4}),
    "a mask without itself": (
        ValueError,
        "a token sees itself",
        lambda a: {"masks": np.array([1, 3, 3], np.uint64), "mask_start": 4},
    ),
    "a mask of the future": (
        ValueError,
        "a token sees itself",
        lambda a: {"masks": np.array([3, 2, 4], np.uint64), "mask_start": 4},
    ),
    "masks from after the cache": (
        ValueError,
        "newest 64",
        lambda a: {"masks": np.array([1, 2, 4], np.uint64), "mask_start": 5},
    ),
}


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("case", WRONG)
def test_arrays_that_do_not_fit_are_an_error_and_never_read(native: Callable[..., Any], case: str) -> None:
    decoder = native("llama", "BF16", "dense", IMPLEMENTATIONS[0], 1)
    good = arguments(decoder)
    native_pass(decoder, **good)
    error, message, change = WRONG[case]
    with pytest.raises(error, match=message):
        native_pass(decoder, **good | change(good))
