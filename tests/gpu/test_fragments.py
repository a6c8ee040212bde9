"""Exact BSFP in fragment order against the NumPy codecs, and what its machine code takes, without a GPU.

The compiled kernels run on the CPU, instruction by instruction (tests/ptx_warp.py). On a GPU its own check runs too.
"""

import re
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="mxconv[gpu] is not installed: torch is missing")
pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")

import torch
import triton
from checkpoints import write_tiny_llama
from fragment_kernels import VARIANTS, compiled, launch_here, runnable
from gpu_weights import DEVICE, assert_product, bits
from packages import quantize
from ptx_warp import PtxError, PtxKernel
from stored_matrices import gaussian, stored_bsfp, stored_mxfp4

from mxconv.codecs.bsfp.packing import decode_bsfp, decode_bsfp_draft
from mxconv.codecs.bsfp.table import SegmentTable
from mxconv.codecs.e2m1 import VALUES
from mxconv.codecs.float16 import BF16
from mxconv.errors import ModelError
from mxconv.gpu import fragment_product as of_product
from mxconv.gpu import gpu_package, self_check
from mxconv.gpu.fragment_product import cut, fragment_patterns, fragment_product
from mxconv.gpu.fragment_reference import reference_patterns
from mxconv.gpu.fragments import FragmentArrays, FragmentDraft, draft_fragments, fragments_of, rows_of_patterns
from mxconv.gpu.gpu_package import GpuPackage
from mxconv.gpu.launch import RoutedPairs
from mxconv.gpu.weight import BsfpWeight, StackedWeight, at_level, uploaded_weight
from mxconv.package.package import Package
from mxconv.package.stored import StoredBsfp, StoredMxfp4

CPU = torch.device("cpu")
TOOLS = Path(triton.__file__).parent / "backends/nvidia/bin"


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on the CPU."""
    monkeypatch.setattr(of_product, "launch", launch_here)


def matrix(shape: tuple[int, int], seed: int = 0, **options: Any) -> tuple[StoredBsfp, FragmentArrays, FragmentDraft]:
    stored = stored_bsfp(BF16.encode(gaussian(shape, seed, outliers=True) / 8), BF16, residual_bits=8, **options)
    return stored, *fragments_of(stored, CPU, {})


def rebuild_fragments(
    arrays: FragmentArrays | FragmentDraft, first_row: int = 0, num_rows: int | None = None
) -> torch.Tensor:
    """Rows of a matrix, which torch's own operations find too."""
    num_rows = arrays.shape[0] - first_row if num_rows is None else num_rows
    patterns = fragment_patterns(arrays, first_row, num_rows)
    assert torch.equal(patterns, reference_patterns(arrays, first_row, num_rows))
    return rows_of_patterns(arrays, patterns, first_row)


def in_mxfp4(stored: StoredMxfp4) -> FragmentDraft:
    return draft_fragments(stored.shape, torch.from_numpy(stored.codes), torch.from_numpy(stored.scales), VALUES[:8])


KINDS = pytest.mark.parametrize(
    ("dtype", "num_planes"), [(torch.bfloat16, 0), (torch.bfloat16, 1), (torch.float16, 2), (torch.float16, 4)], ids=str
)


@KINDS
def test_all_65536_patterns_come_back_and_their_products(here: None, dtype: torch.dtype, num_planes: int) -> None:
    assert self_check.wrong_bits(CPU, 32, dtype, num_planes) is None
    stored, patterns = self_check._every_pattern(dtype, num_planes)
    assert len(stored.packed.escape_high) > 5000 and (num_planes == 0 or stored.packed.residual_high.all(2).any())
    assert np.array_equal(bits(rebuild_fragments(fragments_of(stored, CPU, {})[0])), patterns)


def test_a_wrong_bit_anywhere_is_found(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(kernel: Any, grid: tuple[int, int], *arguments: Any, **constants: Any) -> None:
        launch_here(kernel, grid, *arguments, **constants)
        arguments[6][17, 3] ^= 1 << 9

    monkeypatch.setattr(of_product, "launch", spoiled)
    assert re.match(r"since weight -?\d+ at row 17, column 3 is no", str(self_check.wrong_bits(CPU)))


# ragged rows, columns, groups and splits; more escapes in a half step than a warp has lanes
@pytest.mark.parametrize(
    ("shape", "num_tokens"), [((1, 1), 1), ((40, 300), 5), ((17, 1100), 16), ((8, 40), 9)], ids=str
)
def test_values_and_products_are_those_of_the_codec(here: None, shape: tuple[int, int], num_tokens: int) -> None:
    stored, exact, draft = matrix(shape, row_shifts=shape[0] > 1)
    values = BF16.decode(decode_bsfp(stored.packed, stored.table, shape))
    assert np.array_equal(rebuild_fragments(exact).float().numpy(), values)
    x = (torch.randint(-64, 65, (num_tokens, shape[1]), generator=torch.Generator().manual_seed(1)) / 16).bfloat16()
    found = fragment_product(exact, x)
    assert_product(found, x.float(), values)
    levels = decode_bsfp_draft(stored.packed, stored.table, shape)
    assert np.array_equal(rebuild_fragments(draft).numpy(), levels)
    drafted = fragment_product(draft, x)
    assert_product(drafted, x.float(), levels)
    alone = [num_tokens - 1] if num_tokens > 1 else []
    for token in alone:
        assert torch.equal(fragment_product(exact, x[token, None].clone())[0], found[token])
        assert torch.equal(fragment_product(draft, x[token, None].clone())[0], drafted[token])
    assert not exact.counters.any()


@pytest.mark.parametrize(("shape", "num_tokens"), [((1, 1), 1), ((40, 300), 5), ((17, 1120), 16)], ids=str)
def test_so_are_those_of_mxfp4(here: None, shape: tuple[int, int], num_tokens: int) -> None:
    stored, values = stored_mxfp4(gaussian(shape))
    arrays = in_mxfp4(stored)
    assert np.array_equal(rebuild_fragments(arrays).numpy(), values)
    x = (torch.randint(-64, 65, (num_tokens, shape[1]), generator=torch.Generator().manual_seed(1)) / 16).bfloat16()
    found = fragment_product(arrays, x)
    assert_product(found, x.float(), values)
    assert torch.equal(fragment_product(arrays, x[-1:].clone())[0], found[-1])


def test_rows_in_the_middle_are_rebuilt(here: None) -> None:
    stored, exact, draft = matrix((70, 140))
    patterns = decode_bsfp(stored.packed, stored.table, (70, 140))
    assert np.array_equal(bits(rebuild_fragments(exact, 32, 30)), patterns[32:62])
    for four_bit in (draft, in_mxfp4(stored_mxfp4(gaussian((70, 140)))[0])):
        assert torch.equal(rebuild_fragments(four_bit, 64), rebuild_fragments(four_bit)[64:])


def test_tiles_of_escapes_alone_come_back_and_so_does_one_with_another_sign(here: None) -> None:
    table = SegmentTable(BF16, 8, (tuple(range(0x3C00, 0x4000, 0x80)),), tuple(range(10, 90, 10)))
    few = np.random.default_rng(0).choice(np.array([0x0000, 0x8001, 0x7F7F, 0x2F80], np.uint16), (16, 192))
    few[4:, 64:] = BF16.encode(np.random.default_rng(1).uniform(0.01, 1, (12, 128)).astype(np.float32))
    stored = stored_bsfp(few, BF16, table=table)
    assert (stored.packed.escape_counts[0, :8] == 128).all()
    packed = replace(stored.packed, escape_high=stored.packed.escape_high.copy())
    packed.escape_high[::3] ^= 0x80
    exact, _ = fragments_of(replace(stored, packed=packed), CPU, {})
    assert np.array_equal(bits(rebuild_fragments(exact)), decode_bsfp(packed, stored.table, few.shape))


def test_arrays_do_not_depend_on_how_many_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    _, exact, draft = matrix((100, 300), row_shifts=True)
    monkeypatch.setattr("mxconv.gpu.fragments.ESCAPES_AT_A_TIME", 1)
    monkeypatch.setattr("mxconv.gpu.fragments.WEIGHTS_AT_A_TIME", 1)
    _, exact_again, draft_again = matrix((100, 300), row_shifts=True)
    for one, other in ((exact, exact_again), (draft, draft_again)):
        for name, found in vars(one).items():
            same = (
                torch.equal(found, vars(other)[name]) if isinstance(found, torch.Tensor) else found == vars(other)[name]
            )
            assert same, name


def test_weights_of_models_take_at_most_12_8_bits_and_4_3() -> None:
    patterns = BF16.encode(np.random.default_rng(0).standard_normal((512, 2048), np.float32) * np.float32(0.02))
    exact, _ = fragments_of(stored_bsfp(patterns, BF16, row_shifts=None), CPU, {})
    assert 12 < 8 * exact.num_bytes / patterns.size <= 12.8
    assert 8 * in_mxfp4(stored_mxfp4(BF16.decode(patterns))[0]).num_bytes / patterns.size <= 4.3


@pytest.mark.parametrize(("rows", "columns"), [(16, 64), (4096, 4096), (8192, 8192), (14336, 4096), (128256, 4096)])
def test_the_cut_covers_a_matrix_in_whole_groups(rows: int, columns: int) -> None:
    row_tiles, steps = -(-rows // 16), -(-columns // 128) * 2
    splits, split_steps = cut(row_tiles, steps)
    assert split_steps % 2 == 0
    assert (splits - 1) * split_steps < steps <= splits * split_steps
    assert splits == 1 or row_tiles * splits <= of_product.PROGRAMS


def test_a_missing_barrier_is_seen() -> None:
    """So the warp's use of shared memory is right, and not by luck of the order in which lanes run."""
    kernel = *VARIANTS["patterns_of_rows"], 90
    text = compiled(*kernel).asm["ptx"]
    _, exact, _ = matrix((16, 128))
    out = np.zeros((16, 128), np.int16)
    arrays = [each.numpy() for each in (exact.codes, exact.residuals, exact.starts, exact.escapes, exact.firsts)]
    runnable(*kernel).run((1, 1), [*arrays, out, 2, 2, 0, 16, 128])
    with pytest.raises(PtxError, match="two lanes use a byte without a barrier"):
        PtxKernel(text.replace("bar.warp.sync 0xffffffff;", "")).run((1, 1), [*arrays, out, 2, 2, 0, 16, 128])
    with pytest.raises(PtxError, match=r"ld\.global.*: address .* is outside"):
        runnable(*kernel).run((1, 1), [arrays[0][:, :1], *arrays[1:], out, 2, 2, 0, 16, 128])


def test_a_device_whose_kernels_are_wrong_gets_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A GPU")
    monkeypatch.setattr(self_check, "on", lambda _: torch.device("meta"))
    monkeypatch.setattr(self_check, "wrong_bits", lambda _, **kind: "since weight 1 at row 2, column 3 is no 4")
    self_check.kernels_work.cache_clear()
    with pytest.warns(UserWarning, match="A GPU: the kernels are not used, since weight 1 at row 2"):
        assert not self_check.kernels_work(torch.device("cuda:0"))

    def fails(device: torch.device, **kind: Any) -> str:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(self_check, "wrong_bits", fails)
    self_check.kernels_work.cache_clear()
    with pytest.warns(UserWarning, match="not used, RuntimeError: no such instruction; exact bits are required"):
        assert not self_check.kernels_work(torch.device("cuda:0"))
    self_check.kernels_work.cache_clear()


def test_a_weight_is_multiplied_by_kernels_where_they_work(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxconv.gpu.weight.kernels_work", lambda *_: True)
    stored, _, _ = matrix((20, 40))
    made = uploaded_weight(stored, CPU)
    assert isinstance(made, BsfpWeight) and isinstance(made.arrays, FragmentArrays)
    patterns = decode_bsfp(stored.packed, stored.table, (20, 40))
    assert np.array_equal(bits(made.rebuild()), patterns)
    x = torch.ones(17, 40)  # torch multiplies
    few = made.product(x[:1])
    assert_product(few, x[:1], BF16.decode(patterns))
    assert (made.product(x)[0] - few[0]).abs().max() <= 0.01 * few.abs().max()
    drafted = made.draft.product(x[:1])
    assert_product(drafted, x[:1], made.draft.rebuild().numpy())
    four_bit, values = stored_mxfp4(gaussian((20, 40)))
    alone = uploaded_weight(four_bit, CPU)
    assert isinstance(alone.arrays, FragmentDraft) and np.array_equal(alone.rebuild().numpy(), values)


@pytest.mark.parametrize("codec", ["bsfp", "mxfp4"])
@pytest.mark.parametrize(("num_tokens", "per_token", "of_pairs"), [(5, 2, False), (3, 2, True), (20, 2, False)])
def test_experts_multiply_as_each_does_alone(
    here: None, monkeypatch: pytest.MonkeyPatch, codec: str, num_tokens: int, per_token: int, of_pairs: bool
) -> None:
    """Bit for bit: with an expert that no token takes, and one that more than sixteen take."""
    monkeypatch.setattr("mxconv.gpu.weight.kernels_work", lambda *_: True)
    shape, num_experts, random = (24, 600), 4, np.random.default_rng(0)
    if codec == "bsfp":
        stored: list[Any] = [matrix(shape, seed=seed)[0] for seed in range(num_experts)]
    else:
        stored = [stored_mxfp4(gaussian(shape, seed=seed))[0] for seed in range(num_experts)]
    stack = StackedWeight.uploaded(stored, CPU)
    assert isinstance(stack.weight.arrays, FragmentArrays | FragmentDraft)
    alone = [uploaded_weight(each, CPU) for each in stored]
    chosen = np.stack([random.permutation(3)[:per_token] for _ in range(num_tokens)])
    chosen[:, 0] = np.where(random.random(num_tokens) < 0.9, 2, chosen[:, 0])
    routed = RoutedPairs.of(torch.from_numpy(chosen), num_experts)
    rows = torch.from_numpy(random.standard_normal((num_tokens * (per_token if of_pairs else 1), 600))).bfloat16()
    for level in ("target", "draft") if codec == "bsfp" else ("target",):
        found = stack.product(rows, routed, level)
        for pair, expert in enumerate(chosen.flatten()):
            row = rows[pair if of_pairs else pair // per_token]
            assert found[pair].equal(at_level(alone[expert], level).product(row[None])[0]), (level, pair)
    assert not stack.weight.arrays.counters.any()
    for number, each in enumerate(alone):
        assert stack.expert(number).rebuild().equal(each.rebuild())


def test_residuals_can_stay_on_the_host(here: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their arrays are not among those that are copied first, and weights are exact."""
    source = write_tiny_llama(tmp_path / "llama")
    quantize(source, tmp_path / "bsfp", codec="bsfp")
    with pytest.raises(ModelError, match=r"residuals='host': \d+ exact matrices .* on cpu; at least one is required"):
        GpuPackage(tmp_path / "bsfp", CPU, residuals="host")
    with pytest.raises(ModelError, match=r"residuals 'disk'; device or host is required"):
        GpuPackage(tmp_path / "bsfp", CPU, residuals="disk")  # type: ignore[arg-type]
    assert GpuPackage(tmp_path / "bsfp", CPU, "draft", "host").num_bytes > 0  # which has no residuals
    for module in ("weight", "gpu_package"):
        monkeypatch.setattr(f"mxconv.gpu.{module}.kernels_work", lambda *_: True)
    copied, left = [], []
    whole = gpu_package._on_device

    def watched(package: Package, names: Any, later: Any, *others: Any) -> Any:
        copied.extend(names)
        left.extend(later)
        return whole(package, names, later, *others)

    monkeypatch.setattr(gpu_package, "_on_device", watched)
    loaded = GpuPackage(tmp_path / "bsfp", CPU, residuals="host")
    assert left and not set(left) & set(copied)
    with Package(tmp_path / "bsfp") as package:
        for record in package.manifest.tensors:
            weight = loaded.weights.get(record.name)
            if isinstance(weight, BsfpWeight) and isinstance(weight.arrays, FragmentArrays):
                assert f"{record.stem}.residual_low" in left
                held = package.bsfp(record)
                patterns = held.target_rows(0, held.shape[0])
                assert np.array_equal(bits(weight.rebuild()), patterns)
                x = torch.ones(1, held.shape[1])
                assert_product(weight.product(x), x, BF16.decode(patterns))
                left.remove(f"{record.stem}.residual_low")
    assert not left


@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
@KINDS
def test_every_bit_is_right_on_this_gpu(dtype: torch.dtype, num_planes: int) -> None:
    assert self_check.wrong_bits(DEVICE, dtype=dtype, num_planes=num_planes) is None


# ---- machine code ----


def instructions_a_step(path: Path) -> Counter[str]:
    """Instructions of the loop with matrix instructions, without the loop in it that more than 32 escapes enter."""
    command = [TOOLS / "nvdisasm", "-c", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines: list[str] = []
    labels: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for line in text.splitlines():
        if found := re.match(r"\s*(\.L_x_\d+):", line):
            labels[found[1]] = len(lines)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?(.*?);", line):
            lines.append(found[1])
            target = re.search(r"BRA.*`\((\.L_x_\d+)\)", found[1])
            if target and labels.get(target[1], len(lines)) < len(lines) - 1:
                loops.append((labels[target[1]], len(lines)))
    main = next(loop for loop in loops if any("HMMA" in each for each in lines[slice(*loop)]))
    inner = {index for begin, end in loops for index in range(begin, end) if main[0] < begin and end < main[1]}
    return Counter(lines[index].split()[0].split(".")[0] for index in range(*main) if index not in inner)


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_machine_code_keeps_weights_in_registers(capability: int, tmp_path: Path) -> None:
    """At most 4 to 6 instructions a weight, 2 more a bit plane, 9 KB of shared memory, and nothing spilled."""
    for name, (kernel, constants) in VARIANTS.items():
        file = tmp_path / f"{name}.cubin"
        file.write_bytes(compiled(kernel, constants, capability).asm["cubin"])
        command = [TOOLS / "cuobjdump", "--dump-resource-usage", file]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
        assert used["LOCAL"] == used["STACK"] == 0, (name, used)
        assert used["SHARED"] <= 9 << 10, (name, used)
        assert used["REG"] <= 112, (name, used)
        if "product" in name:
            counts = instructions_a_step(file)
            assert counts["LDL"] == counts["STL"] == 0
            kind, planes = name.split("_")[0], int(name.split()[3])
            weights, most = {"draft": (64, 4), "mxfp4": (32, 5)}.get(kind, (32, 6 + 2 * planes))  # of a lane and turn
            assert counts["HMMA"] == weights // 8 * int(name.split()[1]) // 8, name
            assert counts.total() / weights <= most, (name, counts.total())
