"""Drafts of 2 bits: what a calibration writes, what a pass reads, the same texts, and files that are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from dequantized import state_errors
from loaded_packages import pack
from packages import header_of
from safetensors.numpy import load_file, save_file

from mxconv.calibrate import calibrate
from mxconv.codecs.mx2 import dequantize_mx2, quantize_mx2, unpack_mx2
from mxconv.codecs.vnni8 import unpack_scales
from mxconv.cost.package_levels import package_levels
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import CheckpointError, MxconvError
from mxconv.kernels.engine import native_names
from mxconv.package.package import Package
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "examples/models/pylib-0.2m"
DRAWN = Selection(Sampling(0.8, top_p=0.9), "coupled", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages `mxfp4` and `bsfp`, a draft `two.safetensors` made with the first, and `three`, which holds it."""
    made = tmp_path_factory.mktemp("packages")
    text = made / "text.txt"
    text.write_text((ROOT / "mxconv/convert.py").read_text()[:4000])
    for codec in ("mxfp4", "bsfp"):
        pack(SOURCE, made / codec, codec=codec)
    calibrate(made / "mxfp4", [text], made / "two.safetensors", 512, codec="mx2")
    pack(SOURCE, made / "three", drafts=(f"mx2:{made / 'two.safetensors'}",))
    return made


def values_of(path: Path, name: str) -> np.ndarray:
    arrays = load_file(path)
    return dequantize_mx2(unpack_mx2(arrays[f"{name}.codes"]), unpack_scales(arrays[f"{name}.scales"]))


def matrices_of(source: Path) -> dict[str, np.ndarray]:
    """The checkpoint's matrices in float32, read by the safetensors package."""
    reader = pytest.importorskip("safetensors.torch")
    tensors = reader.load_file(source / "model.safetensors")
    return {name: tensor.float().numpy() for name, tensor in tensors.items() if tensor.ndim == 2}


def test_it_holds_the_matrices_of_the_layers_which_err_less_than_those_of_the_cast(folder: Path) -> None:
    header, _ = header_of(folder / "two.safetensors")
    exact = {name: values for name, values in matrices_of(SOURCE).items() if ".layers." in name}
    assert set(header) - {"__metadata__"} == {f"{name}.{part}" for name in exact for part in ("codes", "scales")}
    described = json.loads(header["__metadata__"]["mxconv_draft"])
    assert (described["rule"], described["codec"], described["num_matrices"]) == ("gptq", "mx2", len(exact))
    made = {
        name: values_of(folder / "two.safetensors", name)[: len(each), : each.shape[1]].copy()
        for name, each in exact.items()
    }
    cast = {name: dequantize_mx2(*quantize_mx2(each))[:, : each.shape[1]].copy() for name, each in exact.items()}
    with LoadedPackage(folder / "mxfp4") as loaded:
        ids = loaded.tokenizer.encode((folder / "text.txt").read_text())[:512]
    ours, theirs = state_errors(SOURCE, ids, made, cast)
    assert all(one < 0.8 * other for one, other in zip(ours, theirs, strict=True)), (ours, theirs)


@pytest.mark.parametrize("kernel", ["numpy", *native_names()[:1]])
@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
@pytest.mark.parametrize("levels", [["target"], None])
def test_texts_are_the_targets_own(folder: Path, codec: str, levels: list[str] | None, kernel: str) -> None:
    """Alone and below the 4-bit level, in chains and trees, greedily and drawn, one by one and together."""
    spec = parse_draft(f"mx2:{folder / 'two.safetensors'}")
    with LoadedPackage(folder / codec, levels, kernel, 2, [spec]) as loaded:
        names = [level.name for level in loaded.levels]
        assert names == (["target", "mx2"] if levels else ["target", codec, "mx2"])
        for tree in ("chain", 8):
            hierarchy = Hierarchy(loaded.levels, [4] * (len(names) - 1), [0.0] * (len(names) - 1), tree)
            for selection in (GREEDY, DRAWN):
                batch = 2 if tree == 8 else None
                record = verify_decoding(loaded, hierarchy, ["def read(", "class A:"], 16, selection, batch=batch)
                assert (record.num_tokens, record.num_token_mismatches, record.num_logit_mismatches) == (32, 0, 0)
        generation = hierarchy.generate(loaded.tokenizer.encode("import os\n"), 24)
        assert generation.trace.statistics[-1].num_proposed > 8


def test_a_pass_multiplies_the_files_matrices_and_is_priced_by_them(folder: Path) -> None:
    with LoadedPackage(folder / "three") as loaded:
        _, four, two = loaded.levels
        assert two.decoder is not None and two.record.codec == "mx2" and two.shares_cache
        query = two.decoder.layers[1].mixer.matrices[0]
        stored = values_of(folder / "two.safetensors", "model.layers.1.self_attn.q_proj.weight")
        assert np.array_equal(query.rows(np.arange(query.shape[0])), stored[: query.shape[0], : query.shape[1]])
        read_four, read_two = loaded.bytes_per_pass(four), loaded.bytes_per_pass(two)
    with Package(folder / "three") as package:
        blocks = sum(package.mxfp4(r).scales.size for r in package.manifest.tensors if r.codec == "mxfp4")
        assert read_four - read_two == blocks * 8  # of 16 bytes a block, 8
        assert [level.codec for level in package_levels(package)] == ["bf16", "mxfp4", "mx2"]


def test_files_that_do_not_fit_the_target_are_refused(folder: Path, tmp_path: Path) -> None:
    good, metadata = load_file(folder / "two.safetensors"), {"mxconv_draft": '{"rule": "x", "codec": "mx2"}'}
    codes, scales = (f"model.layers.0.mlp.up_proj.weight.{part}" for part in ("codes", "scales"))
    path = tmp_path / "two.safetensors"
    spec = parse_draft(f"mx2:{path}")
    too_large = good[scales].copy()
    too_large[0, 0, 0] = 254
    for changes, described, message in [
        ({}, {"mxconv_draft": '{"rule": "x"}'}, f"{path}: metadata mxconv_draft: codec None; 'mx2' is required. Make"),
        ({}, {}, "codec None; 'mx2' is required."),
        ({codes: good[codes][:-1]}, metadata, f"{path}: {codes} is U8 ["),
        ({scales: None}, metadata, f"{path}: {scales} is missing; U8 ["),
        ({"other.codes": good[codes]}, metadata, f"{path}: holds 'other'; names of the target's own matrices"),
        ({scales: too_large}, metadata, "MX2 scale 254; 0 to 253 is required. Make it for this model"),
    ]:
        arrays = {name: array for name, array in (good | changes).items() if array is not None}
        save_file(arrays, path, described)
        for attempt in (lambda: LoadedPackage(folder / "mxfp4", drafts=[spec]), lambda: _packed(path, tmp_path)):
            with pytest.raises(CheckpointError) as caught:
                attempt()
            assert message in str(caught.value)


def _packed(path: Path, tmp_path: Path) -> None:
    pack(SOURCE, tmp_path / "package", drafts=(f"mx2:{path}",))


def test_it_drafts_for_the_packages_own_weights_alone(folder: Path, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other")
    pack(SOURCE, tmp_path / "package", drafts=(f"checkpoint:{other}",))
    with pytest.raises(MxconvError, match=r"level mx2 drafts for other; the 2-bit copy drafts for the package's own"):
        LoadedPackage(tmp_path / "package", ["other"], drafts=[parse_draft(f"mx2:{folder / 'two.safetensors'}")])
