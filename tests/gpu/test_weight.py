"""Matrices on a GPU against the NumPy codecs: every bit of BSFP, values of 4 bits, products whose rows stand alone.

More than 16 tokens are multiplied by torch, over rows that are rebuilt a panel at a time. A stack of experts multiplies
each token as its expert alone would, bit for bit.
"""

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
from gpu_weights import DEVICE, assert_product, bits, bsfp_weight, mxfp4_weight, tokens
from stored_matrices import gaussian, stored_bsfp

from mxconv.codecs.bsfp.packing import decode_bsfp_draft
from mxconv.codecs.bsfp.speq import paper_table
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.float16 import BF16, FP16, FloatFormat
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales
from mxconv.errors import CodecError, ModelError
from mxconv.gpu import weight as of_weight
from mxconv.gpu.fragments import FragmentArrays
from mxconv.gpu.launch import RoutedPairs
from mxconv.gpu.weight import BsfpWeight, FourBitWeight, StackedWeight, at_level, uploaded_weight
from mxconv.package.stored import StoredMxfp4

FORMATS = pytest.mark.parametrize("float_format", [BF16, FP16], ids=lambda each: each.name)


def weight(
    values: np.ndarray, float_format: FloatFormat, row_shifts: bool = False, residual_bits: int | None = None
) -> tuple[BsfpWeight, np.ndarray]:
    """A matrix on the device, and its patterns."""
    patterns = float_format.encode(values)
    return bsfp_weight(stored_bsfp(patterns, float_format, row_shifts, residual_bits)), patterns


def of_kind(kind: str, shape: tuple[int, int]) -> tuple[BsfpWeight | FourBitWeight, np.ndarray]:
    """A matrix of `KINDS` on the device, and its values."""
    if kind == "mxfp4":
        return mxfp4_weight(gaussian(shape))
    if kind in ("draft", "paper's draft"):
        is_paper = kind != "draft"
        patterns = BF16.encode(gaussian(shape) / (64 if is_paper else 1))
        stored = stored_bsfp(patterns, BF16, table=paper_table(BF16) if is_paper else None)
        return bsfp_weight(stored).draft, decode_bsfp_draft(stored.packed, stored.table, shape)
    float_format = FP16 if kind == "fp16" else BF16
    exact, patterns = weight(gaussian(shape), float_format, row_shifts=shape[0] == 70)
    return exact, float_format.decode(patterns)


@FORMATS
@pytest.mark.parametrize("kind", ["fitted", "paper"])
def test_all_65536_patterns_come_back(float_format: FloatFormat, kind: str) -> None:
    patterns = np.random.default_rng(0).permutation(np.arange(1 << 16, dtype=np.uint16)).reshape(256, 256)
    table = paper_table(float_format) if kind == "paper" else None
    stored = stored_bsfp(patterns, float_format, row_shifts=table is None, table=table)
    assert len(stored.packed.escape_high) > 10_000
    assert np.array_equal(bits(bsfp_weight(stored).rebuild()), patterns)


@pytest.mark.parametrize(
    ("shape", "float_format", "residual_bits"),
    [((1, 1), BF16, 9), ((15, 33), FP16, 12), ((70, 172), BF16, 9), ((70, 172), FP16, 11), ((33, 1100), FP16, 10)],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_weights_of_any_shape_and_width_come_back(
    shape: tuple[int, int], float_format: FloatFormat, residual_bits: int
) -> None:
    for row_shifts in (False, True):
        matrix, patterns = weight(gaussian(shape), float_format, row_shifts, residual_bits)
        assert np.array_equal(bits(matrix.rebuild()), patterns)


def test_an_escape_at_every_place_of_a_tile_comes_back() -> None:
    """Tile c has one at place c in row tile 0, all but that in row tile 1; in row tile 2, tile 77 is all escapes."""
    starts = tuple(range(0x3C00, 0x4000, 0x80))
    table = SegmentTable(BF16, 8, (starts,), tuple(range(10, 90, 10)))
    patterns = np.random.default_rng(1).integers(0x3C00, 0x3F00, (3, 128, 16, 8)).astype(np.uint16)
    outliers = np.random.default_rng(2).integers(0x4800, 0x7FFF, (3, 128, 128)).astype(np.uint16)
    place, tile = np.arange(128)[None, :], np.arange(128)[:, None]
    escapes = np.stack([place == tile, place != tile, np.broadcast_to(tile == 77, (128, 128))])
    patterns = np.where(escapes, outliers, patterns.reshape(3, 128, 128)).reshape(3, 128, 16, 8)
    patterns = np.ascontiguousarray(patterns.transpose(0, 2, 1, 3).reshape(48, 1024))
    stored = stored_bsfp(patterns, BF16, table=table)
    assert np.array_equal(stored.packed.escape_counts, escapes.sum(axis=2))
    assert np.array_equal(bits(bsfp_weight(stored).rebuild()), patterns)


@FORMATS
def test_a_token_of_one_one_gets_a_column_of_the_exact_weights(float_format: FloatFormat) -> None:
    """So the product's weights are those that are rebuilt, to the bit: zeros but one leave nothing to round."""
    matrix, patterns = weight(gaussian((70, 172)) * np.float32(2.0**-4), float_format)
    assert matrix.arrays.escapes.numel() > 20
    for first in (0, 156):
        x = torch.zeros(16, 172, device=DEVICE)
        x[torch.arange(16), first + torch.arange(16)] = 1
        assert np.array_equal(matrix.product(x).cpu().numpy().T, float_format.decode(patterns[:, first : first + 16]))


KINDS = ("bf16", "fp16", "mxfp4", "draft", "paper's draft")
SHAPES = [(1, 1), (5, 31), (70, 172), (17, 1100)]  # ragged rows, columns, programs of rows and splits of columns
CASES = [*((kind, shape) for kind in KINDS[:3] for shape in SHAPES), ("draft", (5, 31)), ("draft", (17, 1100))]


@pytest.mark.parametrize(("kind", "shape"), [*CASES, ("paper's draft", (20, 40))])
def test_values_and_products_are_those_of_the_codec(kind: str, shape: tuple[int, int]) -> None:
    matrix, values = of_kind(kind, shape)
    assert (matrix.rows, matrix.columns) == shape
    assert np.array_equal(matrix.rebuild().float().cpu().numpy(), values)
    x = tokens(5, shape[1])
    assert_product(matrix.product(x), x, values)


def test_every_code_at_every_scale_is_the_codecs() -> None:
    """16 codes under 256 scales, subnormal ones and NaN among them."""
    codes = np.tile(np.arange(16, dtype=np.uint8), (256, 2))
    scales = np.arange(256, dtype=np.uint8)[:, None]
    with np.errstate(over="ignore"):
        found = uploaded_weight(StoredMxfp4((256, 32), pack_nibbles(codes), pack_scales(scales)), DEVICE).rebuild()
        assert np.array_equal(found.cpu().numpy(), dequantize_mxfp4(codes, scales), equal_nan=True)


@pytest.mark.parametrize(("kind", "shape"), [("bf16", (16, 1200)), ("mxfp4", (20, 136)), ("draft", (20, 136))])
def test_each_of_1_to_16_tokens_is_as_if_alone(kind: str, shape: tuple[int, int]) -> None:
    matrix, _ = of_kind(kind, shape)
    x = torch.randn(16, shape[1], generator=torch.Generator().manual_seed(3)).to(DEVICE)
    alone = torch.cat([matrix.product(row[None]) for row in x])
    for num_tokens in (2, 7, 16):
        assert torch.equal(matrix.product(x[:num_tokens]), alone[:num_tokens])


def test_a_token_that_is_not_finite_spoils_no_other() -> None:
    matrix, _ = weight(gaussian((20, 40)), BF16)
    x = tokens(4, 40)
    expected = matrix.product(x)
    x[2, 17] = torch.inf
    with np.errstate(invalid="ignore"):
        found = matrix.product(x)
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3]], expected[[0, 1, 3]])


@FORMATS
def test_a_matrix_takes_little_more_than_its_files(float_format: FloatFormat) -> None:
    stored = stored_bsfp(float_format.encode(gaussian((512, 1024))), float_format)
    in_file = sum(array.nbytes for array in vars(stored.packed).values() if array is not None)
    assert 0 < bsfp_weight(stored).num_bytes - in_file < 0.05 * in_file


def test_lists_that_contradict_themselves_are_refused_before_a_kernel_reads_them() -> None:
    stored = stored_bsfp(BF16.encode(gaussian((32, 64))), BF16)
    stored.packed.escape_counts[0, 0] += 1
    with pytest.raises(CodecError, match=r"escapes: counts sum to \d+, but \d+ positions"):
        bsfp_weight(stored)


def test_many_tokens_multiply_the_weights_a_panel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, values = of_kind("bf16", (150, 72))
    rebuilt: list[int] = []

    whole = of_weight.rows_of_patterns

    def recorded(arrays: FragmentArrays, patterns: torch.Tensor, first_row: int) -> torch.Tensor:
        rebuilt.append(patterns.nbytes)
        return whole(arrays, patterns, first_row)

    monkeypatch.setattr(of_weight, "rows_of_patterns", recorded)
    monkeypatch.setattr(of_weight, "SCRATCH_BYTES", 64 * 72 * 2)
    x = tokens(17, 72)
    for each, expected in ((matrix, values), mxfp4_weight(gaussian((70, 72)))):
        found, exact = each.product(x).cpu().numpy(), x.cpu().double().numpy() @ expected.T.astype(np.float64)
        assert np.abs(found - exact).max() < 0.01 * np.abs(exact).max()  # rounded to BF16
    assert len(rebuilt) == 3 + 2  # panels of one and the other
    assert max(rebuilt) <= of_weight.SCRATCH_BYTES


def test_a_panel_of_the_widest_matrix_still_has_rows() -> None:
    assert of_weight.panel_rows(4096) == 8192
    assert of_weight.panel_rows(1 << 24) == 64


def test_what_are_no_tokens_is_refused() -> None:
    matrix, _ = mxfp4_weight(gaussian((16, 32)))
    for x in (torch.zeros(2, 33), torch.zeros(32), torch.zeros(0, 32), torch.zeros(2, 32, dtype=torch.int32)):
        with pytest.raises(ModelError, match=r"product: torch\.\w+ of shape .*; floats of shape \(tokens, 32\) are"):
            matrix.product(x.to(DEVICE))
    with pytest.raises(ModelError, match=r"product: input on meta, weights on .*; one device is required"):
        matrix.product(torch.zeros(2, 32, device="meta"))


# ---- stacks of experts ----

NUM_EXPERTS = 5
STACKED_KINDS = ["bsfp", "bsfp mixed", "bsfp fp16", "draft", "mxfp4"]


def of_bsfp(
    shape: tuple[int, int], number: int, float_format: FloatFormat, is_mixed: bool
) -> tuple[BsfpWeight, np.ndarray]:
    """Mixed: some experts with row shifts, and one with more residual bits than the others."""
    patterns = float_format.encode(gaussian(shape, seed=number) / 8)
    bits_more = float_format is BF16 and is_mixed and number == 3
    stored = stored_bsfp(patterns, float_format, is_mixed and number % 2 == 1, 9 if bits_more else None)
    return bsfp_weight(stored, num_planes=1 if is_mixed else 0), patterns


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
    [*((kind, (5, 31)) for kind in STACKED_KINDS), ("bsfp mixed", (70, 172)), ("mxfp4", (70, 172)),
     ("bsfp", (17, 1100)), ("mxfp4", (17, 1100))],
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
