"""Codes that a draft file gives: what the package then holds, and which files are refused."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_safetensors
from packages import StoppedError, check_exact, files_of, forge, quantize, stop_after

from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.errors import CheckpointError
from mxconv.package.package import Package
from mxconv.verify import verify

NAME = "layers.0.weight"
OTHER = "layers.1.weight"
SHAPE = (20, 40)  # padded to (32, 64)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    tensors = {name: rng.standard_normal(SHAPE).astype(ml_dtypes.bfloat16) for name in (NAME, OTHER)}
    return write_safetensors(tmp_path_factory.mktemp("source") / "model.safetensors", tensors)


def arrays(rows: int = SHAPE[0], columns: int = SHAPE[1]) -> dict[str, Any]:
    """Codes and scales of one matrix, written down by formats/mxfp4.md: element (r, c) has code (r + c) % 16."""
    codes, scales = np.zeros((2, 8, 64), np.uint8), np.zeros((2, 2, 16), np.uint8)
    for r in range(rows):
        for c in range(columns):
            place = r // 16, c // 8, 4 * (r % 16) + c % 4
            codes[place] |= (r + c) % 16 << (4 if c % 8 >= 4 else 0)
            scales[r // 16, c // 32, r % 16] = 100 + r
    return {f"{NAME}.codes": codes, f"{NAME}.scales": scales}


def draft_file(path: Path, tensors: dict[str, Any], description: object = None) -> Path:
    metadata = {"mxconv_draft": json.dumps(description or {"rule": "by hand", "tokens": 3})}
    return write_safetensors(path, tensors, metadata)


def test_given_codes_are_what_the_draft_decodes_and_the_target_stays_bit_exact(source: Path, tmp_path: Path) -> None:
    path = draft_file(tmp_path / "draft.safetensors", arrays())
    manifest = quantize(source, tmp_path / "package", draft_weights=str(path))
    stored = safetensors.numpy.load_file(tmp_path / "package/mxfp4.safetensors")
    for name, expected in arrays().items():
        assert np.array_equal(stored[name], expected)
    quantize(source, tmp_path / "cast")
    cast = safetensors.numpy.load_file(tmp_path / "cast/mxfp4.safetensors")
    assert np.array_equal(stored[f"{OTHER}.codes"], cast[f"{OTHER}.codes"])
    assert manifest.draft_weights is not None
    assert (manifest.draft_weights.tensors, manifest.draft_weights.description["tokens"]) == ([NAME], 3)
    check_exact(tmp_path / "package", source)
    assert "1 draft tensors were given ('by hand')" in (verify(tmp_path / "package").given_note or "")


def test_a_tensor_that_was_cast_is_still_encoded_again_beside_given_ones(source: Path, tmp_path: Path) -> None:
    """A draft file with the codes of the other rule; then the manifest is told that nothing was given."""
    quantize(source, tmp_path / "ceil", scale_rule="ceil")
    with Package(tmp_path / "ceil") as package:
        stored = package.mxfp4(next(r for r in package.manifest.tensors if r.name == NAME))
        with DraftFileWriter(tmp_path / "draft.safetensors", {NAME: SHAPE}) as writer:
            writer.write(NAME, stored.codes, stored.scales)
            writer.commit({"rule": "ceil"})
    quantize(source, tmp_path / "package", draft_weights=str(tmp_path / "draft.safetensors"))
    forge(tmp_path / "package", lambda members: members.pop("draft_weights") and None)
    with open_checkpoint(source) as checkpoint:
        found = verify(tmp_path / "package", checkpoint)
    assert [tensor.name for tensor in found.tensors if tensor.status == "mismatch"] == [NAME]


def test_an_interrupted_conversion_does_not_go_on_with_another_draft_file(source: Path, tmp_path: Path) -> None:
    first, second = (draft_file(tmp_path / f"{n}.safetensors", arrays(), {"rule": n}) for n in ("a", "b"))
    with pytest.raises(StoppedError):
        quantize(source, tmp_path / "package", stop_after(1), draft_weights=str(first))
    quantize(source, tmp_path / "package", draft_weights=str(second))
    quantize(source, tmp_path / "whole", draft_weights=str(second))
    assert files_of(tmp_path / "package") == files_of(tmp_path / "whole")


def changed(part: str, change: Any) -> dict[str, Any]:
    made = arrays()
    made[f"{NAME}.{part}"] = change(made[f"{NAME}.{part}"])
    return made


def put(place: tuple[int, ...], value: int) -> Any:
    def change(array: Any) -> Any:
        array[place] = value
        return array

    return change


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (changed("codes", lambda codes: codes[:1]), r"layers.0.weight.codes is U8 \[1, 8, 64\]; U8 \[2, 8, 64\]"),
        (changed("scales", lambda s: s.view(np.int8)), r"scales is I8 \[2, 2, 16\]; U8 \[2, 2, 16\] is required"),
        (changed("scales", put((1, 1, 3), 255)), r"layers.0.weight.scales holds the scale 255 \(NaN\); 0 to 252"),
        (changed("scales", put((0, 0, 0), 253)), r"holds the scale 253 \(E8M0\); 0 to 252 are required"),
        (changed("scales", put((1, 0, 4), 1)), "not zero; zero bytes below row 20 and right of column 40"),
        (changed("codes", put((1, 0, 16), 1)), "padding that is not zero"),
        (changed("codes", put((0, 5, 0), 16)), "padding that is not zero"),
        ({f"{NAME}.codes": arrays()[f"{NAME}.codes"]}, "array layers.0.weight.codes: no pair of it"),
        (arrays() | {"elements": np.zeros(3)}, "array elements: no pair of it"),
        (
            {name.replace("0", "7"): array for name, array in arrays().items()},
            "holds codes of layers.7.weight, which this package does not have in 4 bits",
        ),
    ],
)  # fmt: skip
def test_other_arrays_than_the_package_stores_are_refused(
    source: Path, tmp_path: Path, tensors: dict[str, Any], message: str
) -> None:
    path = draft_file(tmp_path / "draft.safetensors", tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        quantize(source, tmp_path / "package", draft_weights=str(path))
    assert str(path) in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["draft.safetensors"]


def test_files_that_say_nothing_of_themselves_are_refused(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "draft.safetensors"
    for metadata, message in (
        (None, "metadata mxconv_draft: missing; a JSON object"),
        ({"mxconv_draft": "GPTQ"}, "metadata mxconv_draft: no valid JSON"),
        ({"mxconv_draft": '{"tokens": 3}'}, "no `rule`; a text that names the method is required"),
        ({"mxconv_draft": json.dumps({"rule": "x" * 70000})}, "at most 65536 are read"),
    ):
        write_safetensors(path, arrays(), metadata)
        with pytest.raises(CheckpointError, match=message):
            quantize(source, tmp_path / "package", draft_weights=str(path))
    path.unlink()
    with pytest.raises(CheckpointError, match="no such file"):
        quantize(source, tmp_path / "package", draft_weights=str(path))
    with pytest.raises(CheckpointError, match=r"scales is U8 \[2, 2, 16\]; BF16 \[2, 1, 16\] is required"):
        quantize(source, tmp_path / "package", codec="bsfp", draft_weights=str(draft_file(path, arrays())))


def bsfp_arrays(seed: int) -> dict[str, np.ndarray]:
    """Any codes and scales of one matrix: every nibble has one of the eight codes and some sign."""
    rng = np.random.default_rng(seed)
    codes, scales = np.zeros((32, 64), np.uint8), np.zeros((32, 1), np.uint16)
    codes[:20, :40] = rng.integers(0, 16, SHAPE)
    scales[:20] = rng.integers(0, 0x7F80, (20, 1))
    return {f"{NAME}.codes": pack_nibbles(codes), f"{NAME}.scales": pack_scales(scales).view(ml_dtypes.bfloat16)}


@pytest.mark.parametrize("residual_bits", [8, 9])
def test_bsfp_with_any_codes_is_exact_and_drafts_as_told(source: Path, tmp_path: Path, residual_bits: int) -> None:
    given = bsfp_arrays(residual_bits)
    path, options = draft_file(tmp_path / "draft.safetensors", given), {"codec": "bsfp", "residual_bits": residual_bits}
    quantize(source, tmp_path / "package", draft_weights=str(path), **options)
    check_exact(tmp_path / "package", source)
    quantize(source, tmp_path / "cast", **options)
    made, cast = (safetensors.numpy.load_file(tmp_path / name / "bsfp.safetensors") for name in ("package", "cast"))
    signs = np.uint8(0x88)  # of both nibbles of a byte: they are the weights' own
    assert np.array_equal(made[f"{NAME}.codes"] & ~signs, given[f"{NAME}.codes"] & ~signs)
    assert np.array_equal(made[f"{NAME}.codes"] & signs, cast[f"{NAME}.codes"] & signs)
    assert np.array_equal(made[f"{NAME}.scales"], given[f"{NAME}.scales"])
    assert all(np.array_equal(made[name], array) for name, array in cast.items() if name.startswith(OTHER))
    assert len(made[f"{NAME}.escape_high"]) > len(cast[f"{NAME}.escape_high"])
    with open_checkpoint(source) as checkpoint:
        assert verify(tmp_path / "package", checkpoint).ok
    given[f"{NAME}.scales"] = given[f"{NAME}.scales"] * ml_dtypes.bfloat16("nan")
    with pytest.raises(
        CheckpointError, match=r"scales holds the scale \d+ \(a BF16 pattern\); 0 to 32639 are required"
    ):
        quantize(source, tmp_path / "other", draft_weights=str(draft_file(path, given)), **options)


def test_a_draft_file_that_is_not_finished_is_not_there(tmp_path: Path) -> None:
    with (
        DraftFileWriter(tmp_path / "draft.safetensors", {NAME: SHAPE}) as writer,
        pytest.raises(ValueError, match="uint8"),
    ):
        writer.write(NAME, np.zeros((1, 8, 64), np.uint8), np.zeros((2, 2, 16), np.uint8))
    assert not list(tmp_path.iterdir())
