"""Arrays of matrices, and their places in files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.errors import CheckpointError
from mxconv.package.shard_layout import RESERVED, plan_layout
from mxconv.package.stored import StoredArray, bsfp_arrays, mxfp4_arrays, mxint8_arrays


def described(arrays: tuple[StoredArray, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {array.name: (array.dtype, array.shape) for array in arrays}


@pytest.mark.parametrize(
    ("shape", "codes", "scales"),
    [
        ((1, 1), (1, 4, 64), (1, 1, 16)),
        ((16, 32), (1, 4, 64), (1, 1, 16)),
        ((17, 33), (2, 8, 64), (2, 2, 16)),
        ((33, 172), (3, 24, 64), (3, 6, 16)),
        ((64, 257), (4, 36, 64), (4, 9, 16)),
    ],
)
def test_mxfp4_pads_rows_to_16_and_columns_to_32(
    shape: tuple[int, int], codes: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    assert described(mxfp4_arrays("w", shape)) == {"w.codes": ("U8", codes), "w.scales": ("U8", scales)}


@pytest.mark.parametrize(
    ("shape", "elements", "scales"),
    [((1, 1), (1, 8, 64), (1, 1, 16)), ((16, 32), (1, 8, 64), (1, 1, 16)), ((33, 172), (3, 48, 64), (3, 6, 16))],
)
def test_mxint8_pads_likewise_and_has_quads_of_columns(
    shape: tuple[int, int], elements: tuple[int, ...], scales: tuple[int, ...]
) -> None:
    assert described(mxint8_arrays("w", shape)) == {"w.elements": ("I8", elements), "w.scales": ("U8", scales)}


@pytest.mark.parametrize(
    ("shape", "tiles", "groups"), [((1, 1), (1, 4), 1), ((16, 128), (1, 16), 1), ((17, 129), (2, 20), 2)]
)
def test_bsfp_pads_rows_to_16_and_columns_to_32_and_a_group_may_be_shorter(
    shape: tuple[int, int], tiles: tuple[int, int], groups: int
) -> None:
    assert described(bsfp_arrays("w", shape, 8, False, 5)) == {
        "w.codes": ("U8", (*tiles, 64)),
        "w.residual_low": ("U8", (*tiles, 128)),
        "w.scales": ("BF16", (tiles[0], groups, 16)),
        "w.escape_counts": ("U8", tiles),
        "w.escape_offsets": ("I64", (tiles[0] + 1,)),
        "w.escape_positions": ("U8", (5,)),
        "w.escape_high": ("U8", (5,)),
    }


def test_further_residual_bits_are_planes_and_row_shifts_a_byte_a_padded_row() -> None:
    plain = described(bsfp_arrays("w", (17, 129), 8, False, 0))
    more = described(bsfp_arrays("w", (17, 129), 11, True, 0))
    assert {name: more[name] for name in more.keys() - plain.keys()} == {
        "w.residual_high": ("U8", (2, 20, 3, 16)),
        "w.row_shifts": ("I8", (32,)),
    }


def kept(name: str, num_bytes: int) -> tuple[StoredArray, ...]:
    return (StoredArray(name, "U8", (num_bytes,)),)


def test_one_shard_has_a_plain_name_and_no_index() -> None:
    layout = plan_layout({"bsfp": {"a": kept("a", 10), "b": kept("b", 10)}}, 1000)
    assert [shard.file_name for shard in layout.shards] == ["bsfp.safetensors"]
    assert layout.indexes == {}


def test_a_shard_is_closed_before_it_grows_beyond_the_limit_and_a_tensor_is_never_split() -> None:
    sizes = {"a": 10_000, "b": 11_000, "c": 8_000, "d": 50_000, "e": 1}
    layout = plan_layout({"model": {name: kept(name, size) for name, size in sizes.items()}}, 20_000)
    contents = {shard.file_name: sorted(shard.offsets) for shard in layout.shards}
    assert contents == {
        "model-00001-of-00004.safetensors": ["a"],
        "model-00002-of-00004.safetensors": ["b", "c"],
        "model-00003-of-00004.safetensors": ["d"],
        "model-00004-of-00004.safetensors": ["e"],
    }
    assert all(shard.num_bytes <= 20_000 or list(shard.offsets) == ["d"] for shard in layout.shards)
    index = json.loads(layout.indexes["model.safetensors.index.json"])
    assert index["metadata"]["total_size"] == sum(sizes.values())
    assert index["weight_map"]["c"] == "model-00002-of-00004.safetensors"


def test_every_array_of_a_multiple_of_64_bytes_begins_at_one() -> None:
    groups = {f"w{n}": bsfp_arrays(f"w{n}", (16 * n, 128 * n + 1), 8, n % 2 == 1, n) for n in range(1, 6)}
    arrays = {array.name: array for parts in groups.values() for array in parts}
    (shard,) = plan_layout({"bsfp": groups}, 1 << 40).shards
    for name, offset in shard.offsets.items():
        if arrays[name].num_bytes % 64 == 0:
            assert offset % 64 == 0, name
        if arrays[name].dtype == "I64":
            assert offset % 8 == 0, name


def test_two_arrays_of_one_name_are_refused() -> None:
    groups = {"bsfp": {"w": mxfp4_arrays("w", (1, 1)), "w.codes": kept("w.codes", 4)}}
    with pytest.raises(CheckpointError) as caught:
        plan_layout(groups, 100)
    assert str(caught.value) == (
        "tensor w.codes: its name is also that of an array that mxconv writes; unique names are required. "
        "Rename the tensor in the checkpoint."
    )


def test_the_name_of_a_files_metadata_is_no_tensors() -> None:
    with pytest.raises(CheckpointError, match=r"^tensor __metadata__: safetensors keeps this name .* Rename"):
        plan_layout({"model": {"__metadata__": kept("__metadata__", 4)}}, 100)


NAMES = st.text(min_size=1).filter(lambda name: name != RESERVED)


@given(st.lists(st.tuples(NAMES, st.integers(0, 3000)), unique_by=lambda part: part[0]))
def test_no_shard_of_several_tensors_is_longer_than_the_limit(parts: list[tuple[str, int]]) -> None:
    for shard in plan_layout({"model": {name: kept(name, size) for name, size in parts}}, 4000).shards:
        assert shard.num_bytes <= 4000 or len(shard.offsets) == 1
