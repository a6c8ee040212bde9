"""Stacks of experts: converted, proven, and each read by itself."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import check_exact, files_of, flip, forge, header_of, quantize
from stacked_models import write_random_model

from mxconv.errors import PackageError
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights
from mxconv.verify import verify

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "experts.json"
FIRST, SECOND = "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"
FAMILIES = {"gpt_oss": "in_out", "granitemoe": "out_in", "llama4_text": "in_out", "gemma4_text": "out_in"}
both_codecs = pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
pairs = pytest.mark.parametrize(("axes", "codec"), [("out_in", "mxfp4"), ("in_out", "bsfp"), ("in_out", "mxfp4")])
either_way = pytest.mark.parametrize("axes", ["out_in", "in_out"])


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    changes = {"enable_moe_block": True, "hidden_size_per_layer_input": 0} if request.param == "gemma4_text" else {}
    folder = tmp_path_factory.mktemp("families") / request.param
    return write_random_model(folder, request.param, **changes), FAMILIES[request.param]


def stacks_of(package: Package) -> dict[str, TensorRecord]:
    return {record.name: record for record in package.manifest.tensors if record.stack is not None}


def write_stacks(path: Path, axes: str, first: np.ndarray, second: np.ndarray) -> Path:
    """A checkpoint of two stacks of (experts, out_features, in_features), as they are or transposed."""
    arrays = {FIRST: first, SECOND: second}
    turned = {name: array if axes == "out_in" else array.transpose(0, 2, 1) for name, array in arrays.items()}
    return write_safetensors(path, turned)


def random_stacks(num_experts: int = 3, hidden: int = 40, own: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Experts of different scales."""
    rng = np.random.default_rng(5)
    scales = 2.0 ** -np.arange(num_experts)[:, None, None]
    shapes = (num_experts, 2 * own, hidden), (num_experts, hidden, own)
    first, second = ((rng.standard_normal(shape) * scales * 0.02).astype(ml_dtypes.bfloat16) for shape in shapes)
    return first, second


@both_codecs
def test_a_models_experts_are_quantized_and_proven(family: tuple[Path, str], tmp_path: Path, codec: str) -> None:
    source, axes = family
    manifest = quantize(source, tmp_path / "p", codec=codec)
    check_exact(tmp_path / "p", source)
    stacks = [record for record in manifest.tensors if record.experts is not None]
    assert len(stacks) == 2 * 2
    assert {(r.codec, r.reason, r.experts.axes) for r in stacks if r.experts} == {(codec, "stacked experts", axes)}
    assert all(record.codec == "keep" for record in manifest.tensors if "router" in record.name)
    assert not [record.name for record in manifest.tensors if len(record.shape) > 2 and record.experts is None]
    if codec == "bsfp":  # the manifest counts, too
        sizes = [sum(len(content) for content in files_of(path).values()) for path in (tmp_path / "p", source)]
        assert sizes[0] < 0.83 * sizes[1]


def test_experts_that_are_tensors_of_their_own_are_matrices(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "m", "mixtral", num_hidden_layers=1, hidden_size=64, head_dim=16)
    manifest = quantize(source, tmp_path / "p")
    check_exact(tmp_path / "p", source)
    experts = [record for record in manifest.tensors if ".experts." in record.name]
    assert len(experts) == 3 * 4 and all((r.codec, r.reason) == ("mxfp4", "matrix") for r in experts)
    assert all(record.codec == "keep" for record in manifest.tensors if record.name.endswith("gate.weight"))


def test_broken_counts_of_one_expert_leave_the_others_readable(tmp_path: Path) -> None:
    quantize(write_stacks(tmp_path / "m.safetensors", "in_out", *random_stacks()), tmp_path / "p", codec="bsfp")
    shard = tmp_path / "p" / "bsfp.safetensors"
    header, begin = header_of(shard)
    entry = header[f"{FIRST}.escape_counts"]
    num_tiles, num_columns = entry["shape"]
    flip(shard, begin + entry["data_offsets"][0] + num_tiles // 3 * 2 * num_columns, 1)  # of the third expert
    forge(tmp_path / "p")
    with Package(tmp_path / "p") as package:
        record = stacks_of(package)[FIRST]
        for number in (0, 1):
            package.bsfp(record, number)
        with pytest.raises(PackageError, match="escape offsets end at"):
            package.bsfp(record, 2)
    assert {t.name for t in verify(tmp_path / "p").tensors if t.status != "bit-exact"} == {FIRST}


@either_way
@both_codecs
def test_a_package_holds_the_arrays_of_the_vectors(tmp_path: Path, axes: str, codec: str) -> None:
    vectors = json.loads(VECTORS.read_text())
    stacks = [
        np.array(
            [[[int(row[i : i + 4], 16) for i in range(0, len(row), 4)] for row in m] for m in vectors[part]["experts"]],
            np.uint16,
        ).view(ml_dtypes.bfloat16)
        for part in ("gate_up_proj", "down_proj")
    ]
    options = {"segments": "paper"} if codec == "bsfp" else {}
    quantize(write_stacks(tmp_path / "m.safetensors", axes, *stacks), tmp_path / "p", codec=codec, **options)
    with Package(tmp_path / "p") as package:
        for name in (FIRST, SECOND):
            for part, expected in vectors[name.rpartition(".")[2]][codec].items():
                found = package.arrays[f"{name}.{part}"].array()
                if isinstance(expected, list):
                    assert found.ravel().tolist() == expected, part
                elif found.dtype == np.uint16:
                    assert "".join(f"{value:04x}" for value in found.ravel()) == expected, part
                else:
                    assert found.tobytes().hex() == expected, part


@settings(max_examples=15)
@given(
    st.integers(1, 3),
    st.integers(1, 70),
    st.integers(1, 40),
    st.sampled_from(["out_in", "in_out"]),
    st.sampled_from([ml_dtypes.bfloat16, np.float16, np.float32]),
    st.sampled_from(["mxfp4", "bsfp"]),
    st.sampled_from([1.0, 300.0]),
)
def test_any_stack_comes_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    num_experts: int,
    hidden: int,
    own: int,
    axes: str,
    dtype: Any,
    codec: str,
    factor: float,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    stacks = [(array.astype(np.float32) * factor).astype(dtype) for array in random_stacks(num_experts, hidden, own)]
    options = {"dtype": "bf16"} if dtype is np.float32 else {}
    quantize(write_stacks(folder / "m.safetensors", axes, *stacks), folder / "p", codec=codec, **options)
    check_exact(folder / "p", folder / "m.safetensors")


def test_own_tables_where_experts_differ_and_one_where_that_costs_less(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(shape) for shape in ((2, 512, 256), (2, 256, 256)))
    first[1] = np.sign(first[1]) * 2.0 ** rng.integers(-20, 0, first[1].shape)  # another distribution
    stacks = [(array * 0.02).astype(ml_dtypes.bfloat16) for array in (first, second)]
    source = write_stacks(tmp_path / "m.safetensors", "out_in", *stacks)
    records = {r.name: r for r in quantize(source, tmp_path / "p", codec="bsfp").tensors}
    check_exact(tmp_path / "p", source)
    differing, alike = records[FIRST], records[SECOND]
    assert differing.segments is None and differing.experts is not None
    one, other = differing.experts.segments
    assert one.levels != other.levels
    assert alike.segments is not None and alike.experts is not None and not alike.experts.segments


def test_a_stack_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "p"
    quantize(write_stacks(tmp_path / "m.safetensors", "out_in", *random_stacks(3, 80)), package, codec="bsfp")
    manifest = (package / "mxconv.json").read_bytes()

    def forged(change: Any) -> str:
        """What a manifest is refused with after a change of the first stack's record."""
        (package / "mxconv.json").write_bytes(manifest)
        forge(package, lambda members: change(next(r for r in members["tensors"] if r["name"] == FIRST)))
        with pytest.raises(PackageError) as caught:
            Package(package)
        return str(caught.value)

    def give_two_tables(record: dict[str, Any]) -> None:
        record.update(segments=None, experts=record["experts"] | {"segments": [record["segments"]] * 2})

    assert "experts of bsfp [144, 80]; three dimensions" in forged(lambda record: record.update(shape=[144, 80]))
    assert "experts of keep [3, 48, 80]" in forged(lambda record: record.update(codec="keep"))
    assert "2 segment tables of 1 kinds for 3 experts" in forged(give_two_tables)
    assert "codec bsfp without segments" in forged(lambda record: record.update(segments=None))
    assert "a non-empty matrix is required" in forged(lambda record: record.update(experts=None))
    assert "codes is U8 [9, 12, 64]; U8 [15, 8, 64] is required" in forged(
        lambda record: record["experts"].update(axes="in_out")
    )


@pairs
def test_inspect_shows_each_expert_the_same_before_and_after(tmp_path: Path, axes: str, codec: str) -> None:
    source = write_stacks(tmp_path / "m.safetensors", axes, *random_stacks())
    quantize(source, tmp_path / "p", codec=codec)
    seen = []
    for path in (source, tmp_path / "p"):
        with open_weights(str(path)) as weights:
            inspection = inspect_weights(weights, per="tensor")
        assert [t.name for t in inspection.tensors] == [f"{n}[{e}]" for n in (SECOND, FIRST) for e in range(3)]
        assert {t.shape for t in inspection.tensors} == {(40, 24), (48, 40)}
        assert inspection.total.num_quantized == 6
        seen.append([(t.num_weights, t.mxfp4_sqnr_db, t.bsfp_draft_sqnr_db) for t in inspection.tensors])
    assert seen[0] == seen[1]
    with open_weights(str(tmp_path / "p")) as weights:
        (one,) = inspect_weights(weights, tensor_glob=f"{FIRST}[1]").tensors
    assert one.name == f"{FIRST}[1]" and one.stored_draft_sqnr_db is not None
