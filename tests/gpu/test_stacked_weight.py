"""Stacks of experts on a GPU: each row of a product is that of its token and its expert alone, bit for bit."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE, assert_product, bits, bsfp_weight, mxfp4_weight
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.gpu.device_arrays import joined
from mxconv.gpu.launch import RoutedPairs
from mxconv.gpu.weight import BsfpWeight, FourBitWeight, StackedWeight, at_level

NUM_EXPERTS = 5
KINDS = ["bsfp", "bsfp mixed", "bsfp fp16", "draft", "mxfp4"]


def of_bsfp(
    shape: tuple[int, int], number: int, float_format: FloatFormat, is_mixed: bool
) -> tuple[BsfpWeight, np.ndarray]:
    """Mixed: some experts with row shifts, and one with more residual bits than the others."""
    patterns = float_format.encode(gaussian(shape, seed=number) / 8)
    bits_more = float_format is BF16 and is_mixed and number == 3
    stored = stored_bsfp(patterns, float_format, is_mixed and number % 2 == 1, 9 if bits_more else None)
    return bsfp_weight(stored, num_planes=1 if is_mixed else 0, has_row_starts=True), patterns


def experts(kind: str, shape: tuple[int, int]) -> list[tuple[BsfpWeight | FourBitWeight, np.ndarray]]:
    if kind.startswith("mxfp4"):
        return [mxfp4_weight(gaussian(shape, seed=number)) for number in range(NUM_EXPERTS)]
    float_format = FP16 if "fp16" in kind else BF16
    return [of_bsfp(shape, number, float_format, "mixed" in kind) for number in range(NUM_EXPERTS)]


def stack_of(kind: str, shape: tuple[int, int]) -> tuple[StackedWeight, list[BsfpWeight | FourBitWeight], str]:
    alone = [weight for weight, _ in experts(kind, shape)]
    return StackedWeight(alone), alone, "draft" if "draft" in kind else "target"


def routed(num_tokens: int, per_token: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.stack([rng.permutation(NUM_EXPERTS)[:per_token] for _ in range(num_tokens)])).to(DEVICE)


def activations_of(num_rows: int, num_columns: int) -> torch.Tensor:
    rng = np.random.default_rng(9)
    return torch.from_numpy(rng.standard_normal((num_rows, num_columns)).astype(np.float32)).to(DEVICE)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [*((kind, (5, 31)) for kind in KINDS), ("bsfp mixed", (70, 172)), ("mxfp4", (70, 172)), ("bsfp", (17, 1100)),
     ("mxfp4", (17, 1100))],
)  # fmt: skip
def test_each_pair_is_its_token_times_its_expert_as_if_alone(kind: str, shape: tuple[int, int]) -> None:
    stack, alone, level = stack_of(kind, shape)
    assert (stack.rows, stack.columns, stack.num_experts) == (*shape, NUM_EXPERTS)
    x, ids = activations_of(3, shape[1]), routed(3, 2)
    chosen = RoutedPairs.of(ids, NUM_EXPERTS)
    found = stack.product(x, chosen, level)
    assert found.shape == (6, shape[0])
    for pair, expert in enumerate(ids.flatten().tolist()):
        assert torch.equal(found[pair], at_level(alone[expert], level).product(x[pair // 2, None])[0])
    rows = activations_of(6, shape[1])  # on the way back each pair has a row of its own
    found = stack.product(rows, chosen, level)
    for pair, expert in enumerate(ids.flatten().tolist()):
        assert torch.equal(found[pair], at_level(alone[expert], level).product(rows[pair, None])[0])


@pytest.mark.parametrize("kind", ["bsfp mixed", "bsfp fp16", "mxfp4"])
def test_an_expert_of_a_stack_is_the_matrix_that_it_was(kind: str) -> None:
    pairs = experts(kind, (70, 172))
    stack = StackedWeight([weight for weight, _ in pairs])
    if kind == "bsfp mixed":
        ids, x = torch.tensor([[4], [0]], device=DEVICE), activations_of(2, 172).to(torch.bfloat16).float()
        found = stack.product(x, RoutedPairs.of(ids, NUM_EXPERTS))
        for token, expert in enumerate((4, 0)):
            assert_product(found[token, None], x[token, None], BF16.decode(pairs[expert][1]))
    for number, (_, values) in enumerate(pairs):
        found = stack.expert(number).rebuild()
        assert np.array_equal(bits(found) if kind != "mxfp4" else found.cpu().numpy(), values)


def test_more_than_sixteen_pairs_of_one_expert_are_taken_by_several_programs() -> None:
    stack, alone, _ = stack_of("bsfp", (5, 31))
    ids, x = torch.full((37, 1), 2, device=DEVICE), activations_of(37, 31)
    found = stack.product(x, RoutedPairs.of(ids, NUM_EXPERTS))  # 37 of at most 80 pairs: by kernels
    assert torch.equal(found, torch.cat([alone[2].product(row[None]) for row in x]))


@pytest.mark.parametrize("kind", ["bsfp", "draft", "mxfp4"])
def test_so_many_tokens_that_experts_are_rebuilt_give_the_same_within_roundings(kind: str) -> None:
    stack, _, level = stack_of(kind, (5, 31))
    ids, x = routed(60, 2, seed=3), activations_of(60, 31)
    chosen = RoutedPairs.of(ids, NUM_EXPERTS)
    found = stack.product(x, chosen, level)
    rows = torch.cat([
        stack.product(x[token, None], RoutedPairs.of(ids[token, None], NUM_EXPERTS), level) for token in range(60)
    ])  # fmt: skip
    assert found.shape == rows.shape == (120, 5)
    assert (found - rows).norm() / rows.norm() < 0.01


def test_numbers_beyond_the_experts_read_nothing_else() -> None:
    stack, alone, _ = stack_of("mxfp4", (5, 31))
    x = activations_of(1, 31)
    found = stack.product(x, RoutedPairs.of(torch.tensor([[99]], device=DEVICE), NUM_EXPERTS))
    assert torch.equal(found, alone[-1].product(x))


def test_arrays_that_adjoin_are_joined_without_a_copy() -> None:
    whole = torch.arange(24, dtype=torch.int32).view(6, 4)
    together = joined([whole[:2], whole[2:5], whole[5:]])
    assert together.data_ptr() == whole.data_ptr()
    assert torch.equal(together, whole)
    apart = joined([whole[2:5], whole[:2]])
    assert apart.data_ptr() != whole.data_ptr()
    assert torch.equal(apart, torch.cat([whole[2:5], whole[:2]]))
    gap = joined([whole[:2], whole[3:5]])
    assert torch.equal(gap, torch.cat([whole[:2], whole[3:5]]))
