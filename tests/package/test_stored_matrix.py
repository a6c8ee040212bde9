"""The values of a draft: every reader has those that the formats say, bit for bit, in every format and option."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors
from dequantized import draft_values
from packages import quantize

from mxconv.codecs.mxfp4 import SCALE_RULES
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import four_bit_matrices, four_bit_stacks
from mxconv.errors import ModelError
from mxconv.interop.plain_safetensors import export_safetensors
from mxconv.kernels.engine import choose_engine, kernel_names
from mxconv.package.package import Package
from mxconv.package.stored import stored_shape
from mxconv.package.tensor_record import TensorRecord
from mxconv.report.sources import open_weights

STACK = "model.layers.0.mlp.experts."
HEAD = "lm_head.weight"
BSFP: list[dict[str, Any]] = [
    {"codec": "bsfp", "segments": segments, "outliers": outliers, "dtype": dtype}
    for segments in ("fitted", "paper")
    for outliers in ("exact", "rescale")
    for dtype in ("bf16", "fp16")
]
CASES: list[dict[str, Any]] = [
    *({"scale_rule": rule} for rule in SCALE_RULES),
    {"lm_head": "quantize", "dtype": "fp16"},
    {"given": 1},
    *BSFP,
    *({"codec": "bsfp", "outliers": outliers, "given": 1} for outliers in ("exact", "rescale")),
]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Float32 weights: plain ones, rows of many sizes, outliers beyond 2, a head, experts of which one has outliers."""
    rng = np.random.default_rng(7)
    tensors = {
        name: rng.standard_normal(shape).astype(np.float32) * np.float32(0.02)
        for name, shape in (
            ("plain.weight", (40, 200)),
            ("shifted.weight", (72, 288)),
            ("outliers.weight", (72, 200)),
            (HEAD, (48, 96)),
            (f"{STACK}gate_up_proj", (3, 80, 40)),
            (f"{STACK}down_proj", (3, 40, 40)),
        )
    }
    tensors["shifted.weight"] *= np.float32(2) ** -(np.arange(72, dtype=np.float32) % 12)[:, None]
    tensors["outliers.weight"][5, 6], tensors["outliers.weight"][70, 199] = 7.0, -3.0
    tensors[f"{STACK}gate_up_proj"][0] **= 3  # another distribution, another table
    tensors[f"{STACK}gate_up_proj"][2, 7, 9] = -8.0
    folder = tmp_path_factory.mktemp("weights")
    (folder / "config.json").write_text('{"model_type": "of no family"}')
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case.values())))
def package(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, options = tmp_path_factory.mktemp("packages"), {"dtype": "bf16", **request.param}
    if options.pop("given", None):
        quantize(source, folder / "cast", **options)
        options["draft_weights"] = str(write_any_codes(folder / "cast", folder / "draft.safetensors"))
    quantize(source, folder / "package", **options)
    return folder / "package"


def write_any_codes(cast: Path, path: Path) -> Path:
    """A draft file for the same source, with each column's codes in the place of its neighbour's."""
    with Package(cast) as package:
        records = [each for each in package.manifest.tensors if each.codec in ("mxfp4", "bsfp")]
        with DraftFileWriter(path, {r.name: stored_shape(r) for r in records}, records[0].codec) as writer:
            for record in records:
                codes, scales = (package.arrays[f"{record.name}.{part}"].array() for part in ("codes", "scales"))
                lanes = codes.reshape(*codes.shape[:2], 16, 4)[..., ::-1].reshape(codes.shape)
                is_whole = stored_shape(record)[1] % 8 == 0
                writer.write(record.name, lanes if is_whole else codes, scales)
            writer.commit({"rule": "by hand"})
    return path


def matrices_of(record: TensorRecord) -> list[int | None]:
    return [None] if record.stack is None else list(range(record.stack.num_experts))


def test_every_reader_has_the_values_of_the_formats(package: Path, tmp_path: Path) -> None:
    read: dict[str, dict[tuple[str, int | None], np.ndarray]] = {}
    with Package(package) as opened, open_weights(str(package)) as weights:
        manifest, opened_tensors = opened.manifest, {each.name: each for each in weights.tensors}
        records = [each for each in manifest.tensors if each.codec != "keep"]
        places = [(record, expert) for record in records for expert in matrices_of(record)]
        expected = {(record.name, expert): draft_values(opened, record, expert) for record, expert in places}
        stored = {(record.name, expert): opened.draft(record, expert) for record, expert in places}
        read["stored"] = {
            place: np.concatenate([each.draft_rows(0, 16), each.draft_rows(16, each.shape[0])])
            for place, each in stored.items()
        }
        read["inspect"] = {}
        for (name, expert), found in expected.items():
            tensor = opened_tensors[name]
            each = tensor if expert is None else tensor.matrices()[expert]
            read["inspect"][name, expert] = each.draft_rows(0, len(found))
        for kernel in kernel_names():
            for activations in ("int8", "fp32"):
                make = Matrices(choose_engine(kernel, 1), activations)
                made = four_bit_matrices(opened, make, ()), four_bit_stacks(opened, make)
                read[f"{kernel} {activations}"] = {}
                for (name, expert), found in expected.items():
                    matrix = made[0][name] if expert is None else made[1][name].matrix(expert)
                    read[f"{kernel} {activations}"][name, expert] = matrix.rows(np.arange(len(found)))
                    products = matrix.multiply(np.eye(found.shape[1], dtype=np.float32)).T
                    # products are rounded: activations to int8, sums to float32
                    tolerance = {"atol": np.abs(found).max() / 100} if activations == "int8" else {"rtol": 1e-6}
                    np.testing.assert_allclose(products, found, **tolerance, err_msg=f"{kernel} {name} {expert}")
        if manifest.options.codec == "mxfp4":
            export_safetensors(package, tmp_path / "export", level="draft")
            exported = safetensors.numpy.load_file(tmp_path / "export" / "model.safetensors")
            read["exported"] = {
                (name, expert): (exported[name] if expert is None else exported[name][expert]).astype(np.float32)
                for name, expert in expected
            }
    for reader, found in read.items():
        differing = [place for place, values in expected.items() if not np.array_equal(found[place], values)]
        assert differing == [], reader


def test_weights_on_a_gpu_have_the_same_values_or_are_refused(package: Path) -> None:
    pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")
    from gpu_weights import DEVICE

    from mxconv.gpu.gpu_package import GpuPackage

    with Package(package) as opened:
        records = [each for each in opened.manifest.tensors if each.codec != "keep"]
        if rescaled := [each.name for each in records if each.is_rescaled]:
            message = f"tensor {rescaled[0]} was rescaled; exact BSFP is required on a GPU. Convert again without --out"
            for level in ("target", "draft"):
                with pytest.raises(ModelError, match=re.escape(message)):
                    GpuPackage(package, DEVICE, level=level)  # type: ignore[arg-type]
            return
        loaded = GpuPackage(package, DEVICE, level="draft")
        for record in records:
            for expert in matrices_of(record):
                own = loaded.weights[record.name] if expert is None else loaded.stacks[record.stem].expert(expert)
                expected = draft_values(opened, record, expert)
                assert np.array_equal(own.rebuild().float().cpu().numpy(), expected), record.name


@pytest.mark.parametrize("options", BSFP, ids=lambda case: "-".join(case.values()))
def test_the_table_has_tensors_of_every_kind(source: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    records = {each.name: each for each in quantize(source, tmp_path / "package", **options).tensors}
    outliers, experts = records["outliers.weight"].all_segments[0], records[f"{STACK}gate_up_proj"].all_segments
    if options["outliers"] == "rescale":
        assert outliers.rescale_factor == np.float32(1.999 / 7)
        assert [each.rescale_factor for each in experts] == [1.0, 1.0, np.float32(1.999 / 8)]
    else:
        assert {each.rescale_factor for each in (outliers, *experts)} == {1.0}
        assert outliers.num_escapes > 0 or (options["segments"], options["dtype"]) == ("paper", "fp16")
    if options["segments"] == "fitted":
        assert len(records["shifted.weight"].all_segments[0].starts) == 8
        assert len({tuple(each.levels) for each in experts}) == (3 if options["outliers"] == "rescale" else 1)
