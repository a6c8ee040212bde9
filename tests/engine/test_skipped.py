"""The notation of skipped parts."""

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError

NUM_LAYERS = 12
LAYERS = st.frozensets(st.integers(0, NUM_LAYERS - 1))


def skipped(attention: list[int], mlp: list[int]) -> Skipped:
    return Skipped(frozenset(attention), frozenset(mlp))


@pytest.mark.parametrize(
    ("text", "expected", "canonical"),
    [
        ("a3-5+m7+8", skipped([3, 4, 5, 8], [7, 8]), "8+a3-5+m7"),
        ("0", skipped([0], [0]), "0"),
        ("a1+m1", skipped([1], [1]), "1"),
        ("m11", skipped([], [11]), "m11"),
        ("2-4+a3-6", skipped([2, 3, 4, 5, 6], [2, 3, 4]), "2-4+a5-6"),
        ("a5+a4+a3+a1", skipped([1, 3, 4, 5], []), "a1+a3-5"),
        ("007-7", skipped([7], [7]), "7"),
        ("none", skipped([], []), "none"),
    ],
)
def test_layers_and_their_parts_are_named_by_number_and_range(text: str, expected: Skipped, canonical: str) -> None:
    found = Skipped.parse(text, NUM_LAYERS)
    assert found == expected
    assert str(found) == canonical
    assert len(found) == len(expected.attention) + len(expected.mlp)


@given(attention=LAYERS, mlp=LAYERS)
def test_every_set_is_read_as_it_was_written_without_a_comma(attention: frozenset[int], mlp: frozenset[int]) -> None:
    text = str(Skipped(attention, mlp))
    assert re.fullmatch(r"[0-9am+-]+|none", text)
    assert Skipped.parse(text, NUM_LAYERS) == Skipped(attention, mlp)


@pytest.mark.parametrize(
    ("text", "term"),
    [
        *(("", ""), ("3,4", "3,4"), ("1+", ""), ("1+none", "none"), ("a3-m5", "a3-m5"), ("0+5-3", "5-3")),
        *((term, term) for term in ("a", "am3", "3-", "-1", " 3", "3\n", "²", "٣", "1234567890")),
    ],
)
def test_other_texts_are_refused(text: str, term: str) -> None:
    message = f"skipped layers {text!r}: {term!r}; a layer N, a range N-M of layers, aN for an attention or mN for"
    with pytest.raises(ModelError, match="^" + re.escape(message) + r".* is required\. Join them by \+"):
        Skipped.parse(text, NUM_LAYERS)


@pytest.mark.parametrize(("text", "layer"), [("12", 12), ("a3+m10-12", 12), ("0-999999999", 999999999)])
def test_layers_that_the_model_does_not_have_are_refused(text: str, layer: int) -> None:
    message = (
        f"^skipped layers {re.escape(repr(text))}: layer {layer}; layers of the model, 0 to 11, are required. Name"
    )
    with pytest.raises(ModelError, match=message):
        Skipped.parse(text, NUM_LAYERS)


def test_sets_that_were_not_parsed_are_checked_alike() -> None:
    skipped([11], [0]).check(NUM_LAYERS)
    Skipped().check(1)
    for wrong, layer in ((skipped([3], [12]), 12), (skipped([-1], []), -1)):
        with pytest.raises(ModelError, match=rf"layer {layer}; layers of the model, 0 to 11, are required"):
            wrong.check(NUM_LAYERS)


@pytest.mark.parametrize(("num_layers", "share"), [(3, 1.0), (4, 0.3), (5, 0.2), (6, 0.45), (12, 0.3), (33, 0.45)])
def test_parts_at_even_distances(num_layers: int, share: float) -> None:
    skipped = Skipped.spread(num_layers, share)
    inner = range(1, num_layers - 1)
    assert len(skipped) == min(math.floor(share * 2 * num_layers + 1e-9), 2 * len(inner))
    assert abs(len(skipped.attention) - len(skipped.mlp)) <= 1
    for layers in (skipped.attention, skipped.mlp):
        assert layers <= set(inner)
        bounds = [0, *sorted(layers), num_layers - 1]
        gaps = [after - before for before, after in pairwise(bounds)]
        assert max(gaps) <= 2 * (len(inner) / max(len(layers), 1)) + 1


@pytest.mark.parametrize(("num_layers", "share"), [(2, 1.0), (1, 0.5), (5, 0.09), (9, 0.0)])
def test_a_share_that_is_no_part_is_refused(num_layers: int, share: float) -> None:
    message = (
        f"^skipped layers: a share of {share:g} of the parts of {num_layers} layers is none, the first and the last"
    )
    with pytest.raises(ModelError, match=message):
        Skipped.spread(num_layers, share)


def test_an_exit_leaves_out_all_layers_after_it() -> None:
    assert str(Skipped.exit_after(2, 5)) == "2-4"
    assert str(Skipped.exit_after(4, 5)) == "4"
    for num_kept, num_layers in ((0, 5), (5, 5), (1, 1)):
        with pytest.raises(
            ModelError, match=rf"^skipped layers: an exit after layer {num_kept} of {num_layers}; 1 to "
        ):
            Skipped.exit_after(num_kept, num_layers)
