import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxconv.errors import CheckpointError
from mxconv.package.shard_layout import RESERVED, plan_layout
from mxconv.package.stored import StoredArray, bsfp_arrays, mxfp4_arrays


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
