from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.checkpoint.stacked import EXPERT_NAMES, StackedExperts, stacked_experts

LAYER = "model.layers.0.mlp"
GATED = [(names.first, names.second) for names in EXPERT_NAMES]
size = st.integers(1, 9)


@dataclass(frozen=True)
class Shape:
    shape: tuple[int, ...]


def found(first: tuple[int, ...], second: tuple[int, ...], names: tuple[str, str] = GATED[0]) -> list[StackedExperts]:
    """What is found of a layer's two stacks, among other tensors."""
    tensors = {LAYER + names[0]: first, LAYER + names[1]: second, "model.norm.weight": (4,), "conv.weight": (2, 3, 4)}
    stacks = stacked_experts({name: Shape(shape) for name, shape in tensors.items()})
    assert stacks.keys() in ({LAYER + names[0], LAYER + names[1]}, set())
    return list(stacks.values())


@pytest.mark.parametrize("names", GATED)
@given(size, size, size)
def test_shapes_of_gated_experts_say_which_way_they_lie(
    names: tuple[str, str], num_experts: int, hidden: int, own: int
) -> None:
    first, second = found((num_experts, 2 * own, hidden), (num_experts, hidden, own), names)
    assert (first.axes, first.matrix_shape, second.matrix_shape) == ("out_in", (2 * own, hidden), (hidden, own))
    first, second = found((num_experts, hidden, 2 * own), (num_experts, own, hidden), names)
    assert (first.axes, first.matrix_shape, second.matrix_shape) == ("in_out", (2 * own, hidden), (hidden, own))


def test_stacks_without_gates_lie_as_the_table_says() -> None:
    attention = (".self_attention.experts.input_linear.weight", ".self_attention.experts.output_linear.weight")
    assert [stack.axes for stack in found((4, 32, 64), (4, 64, 32), attention)] == ["out_in", "out_in"]
    assert found((4, 32, 64), (4, 64, 32)) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((4, 6, 8), (4, 8, 4)),  # no way fits
        ((4, 6, 8), (3, 8, 3)),  # another number of experts
        ((6, 8), (8, 3)),
        ((4, 6, 8, 1), (4, 8, 3, 1)),
        ((0, 6, 8), (0, 8, 3)),
        ((4, 0, 0), (4, 0, 0)),
    ],
)
def test_shapes_that_do_not_belong_together_are_no_stacks(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert found(first, second) == []


def test_one_stack_without_the_other_is_none() -> None:
    assert stacked_experts({f"{LAYER}.experts.gate_up_proj": Shape((4, 6, 8))}) == {}


@given(size, st.integers(1, 40), size, st.sampled_from(["out_in", "in_out"]))
def test_experts_lie_one_below_the_other_in_whole_tiles(num_experts: int, rows: int, columns: int, axes: str) -> None:
    shape = (num_experts, rows, columns) if axes == "out_in" else (num_experts, columns, rows)
    stack = StackedExperts(shape, axes)  # type: ignore[arg-type]
    assert stack.matrix_shape == (rows, columns)
    ends = [stack.tiles(expert) for expert in range(num_experts)]
    assert [end for _, end in ends] == [*(first for first, _ in ends[1:]), stack.stored_shape[0] // 16]
    assert 16 * (ends[0][1] - 1) < rows <= 16 * ends[0][1] and ends[0][0] == 0
