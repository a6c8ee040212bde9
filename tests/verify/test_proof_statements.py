"""What `verify` says of every kind of package, as docs/verify.md has it, and what it says of mutants."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_tiny_llama
from fp8_models import write_fp8_model
from gguf_files import write_gguf
from packages import compare, forge, patch_array, quantize
from stacked_models import write_carried_model, write_random_model

from mxconv.checkpoint.stacked import CarriedTensor
from mxconv.conversion import encode
from mxconv.conversion.draft_file import DraftFileWriter
from mxconv.package.manifest import CertificateRecord, read_manifest
from mxconv.package.package import Package
from mxconv.package.stored import stored_shape
from mxconv.verification import tensor_proof
from mxconv.verification.tensor_proof import TensorVerification
from mxconv.verify import Verification, verify, write_certificate

PAGE = Path(__file__).parents[2] / "docs" / "verify.md"


@dataclass(frozen=True)
class Kind:
    """A kind of package: its source, and how it is made."""

    source: str
    options: dict[str, Any]
    is_given: bool = False


BSFP, MXFP4, REFERENCED = {"codec": "bsfp"}, {"codec": "mxfp4", "target": "include"}, {"target": "reference"}
KINDS = {
    "BSFP": Kind("llama", BSFP),
    "BSFP, given codes": Kind("llama", BSFP, is_given=True),
    "BSFP, `--outliers rescale`": Kind("outlier", BSFP | {"outliers": "rescale"}),
    "BSFP of stacked experts": Kind("experts", BSFP),
    "BSFP of a source with MXFP4 experts": Kind("carried", BSFP),
    "BSFP of FP8": Kind("fp8", BSFP),
    "BSFP of GGUF, `--dtype`": Kind("gguf", BSFP | {"dtype": "bf16"}),
    "MXFP4 with its target": Kind("llama", MXFP4),
    "MXFP4 with its target, given codes": Kind("llama", MXFP4, is_given=True),
    "MXFP4 of stacked experts, with its target": Kind("experts", MXFP4),
    "MXFP4 of a source with MXFP4 experts, with its target": Kind("carried", MXFP4),
    "MXFP4 of FP8, with its target": Kind("fp8", MXFP4),
    "MXFP4 of GGUF, `--dtype`": Kind("gguf", MXFP4 | {"dtype": "bf16"}),
    "MXFP4, target referenced": Kind("llama", REFERENCED),
    "MXFP4, target referenced, given codes": Kind("llama", REFERENCED, is_given=True),
    "MXFP4 of stacked experts, target referenced": Kind("experts", REFERENCED),
    "MXFP4 of a source with MXFP4 experts, target referenced": Kind("carried", REFERENCED),
    "MXFP4 of FP8, target referenced": Kind("fp8", REFERENCED),
}
each_kind = pytest.mark.parametrize("kind", list(KINDS))
CAST = [kind for kind in KINDS if kind.startswith("MXFP4") and "given" not in kind and "source" not in kind]
Made = Callable[[str], tuple[Path, Path]]


def write_outlier(folder: Path) -> Path:
    """One matrix has a weight that BSFP can only rescale."""
    write_tiny_llama(folder, num_hidden_layers=1)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][3, 4] = 2.40625
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


SOURCES: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: write_tiny_llama(path, num_hidden_layers=1),
    "outlier": write_outlier,
    "experts": lambda path: write_random_model(path, "granitemoe", num_hidden_layers=1),
    "carried": lambda path: write_carried_model(path, down_proj=(4, 64, 3)),
    "fp8": lambda path: write_fp8_model(path, num_hidden_layers=1),
    "gguf": lambda path: write_gguf(path.with_suffix(".gguf"), matrix_type="Q4_0"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A kind's source and package, to be read only."""
    folder, sources, packages = tmp_path_factory.mktemp("kinds"), dict[str, Path](), dict[str, Path]()

    def source_of(name: str) -> Path:
        if name not in sources:
            sources[name] = SOURCES[name](folder / name)
        return sources[name]

    def make(kind: str) -> tuple[Path, Path]:
        source, options = source_of(KINDS[kind].source), KINDS[kind].options
        if kind not in packages:
            package = folder / f"package-{len(packages)}"
            if KINDS[kind].is_given:
                options = options | {"draft_weights": str(given_codes(source, folder / package.name, options))}
            quantize(source, package, **options)
            packages[kind] = package
        return source, packages[kind]

    return make


def given_codes(source: Path, folder: Path, options: dict[str, Any]) -> Path:
    """A draft file with all codes that another scale rule or table gives."""
    cast, codec = folder.with_suffix(".cast"), options.get("codec", "mxfp4")
    quantize(source, cast, **options, **({"segments": "paper"} if codec == "bsfp" else {"scale_rule": "ceil"}))
    with Package(cast) as package:
        records = {record.name: record for record in package.manifest.tensors if record.codec == codec}
        shapes = {name: stored_shape(record) for name, record in records.items()}
        with DraftFileWriter(folder.with_suffix(".draft"), shapes, codec) as writer:
            for name in records:
                writer.write(name, *(package.arrays[f"{name}.{part}"].array() for part in ("codes", "scales")))
            writer.commit({"rule": "by hand"})
    return folder.with_suffix(".draft")


def rows_of_the_page() -> dict[str, tuple[str, ...]]:
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    return {kind: row[1:] for row in rows for kind in row[0].split("; ") if kind in KINDS}


def weights(tensor: TensorVerification) -> str:
    """The page's word for what was found of a tensor's own bytes; where it claims no bits there must be no hash."""
    if tensor.sha256_reconstructed is None:
        assert tensor.status in ("derived", "kept", "lossy") and tensor.max_abs_error is None
        return "kept in the source" if tensor.status == "kept" else "not here"
    exact = tensor.status == "bit-exact"
    assert exact == (tensor.sha256_reconstructed == tensor.sha256_source)
    return "lossy" if not exact else "kept" if tensor.is_kept else "rebuilt"


@each_kind
def test_the_page_says_what_is_counted_as_what(made: Made, kind: str) -> None:
    source, package = made(kind)
    words = rows_of_the_page()[kind]
    alone, compared = verify(package), compare(package, source)
    records = {record.name: record for record in read_manifest(package).tensors}
    is_referenced = "referenced" in kind
    for found in (alone, compared):
        assert found.ok and found.lossless == (not is_referenced and "rescale" not in kind)
        drafts = [tensor for tensor in found.tensors if tensor.codec != "keep"]
        others = {weights(tensor) for tensor in found.tensors if tensor.codec == "keep"}
        expected = {words[0], "rebuilt"} if words[0] == "lossy" else {words[0]}
        assert {weights(tensor) for tensor in drafts} == expected
        assert others == {words[1]} or (found is alone and is_referenced and not others)
        num_exact = 0 if is_referenced else len(records) - (words[0] == "lossy")
        assert found.num_bit_exact == found.num_rebuilt == num_exact
        assert found.num_kept == sum(weights(tensor).startswith("kept") for tensor in found.tensors)
        given = [tensor for tensor in drafts if KINDS[kind].is_given and tensor.codec != "mxint8"]
        assert found.num_derived == (len(drafts) - len(given) if found is compared else 0)
    assert words[2] == ("given" if KINDS[kind].is_given else "derived again")
    assert set(rows_of_the_page()) == set(KINDS)


def assert_nothing_is_claimed(found: Verification, names: set[str]) -> None:
    """No tensor of these is bit-exact, and the package is neither ok nor lossless."""
    assert not found.ok and not found.lossless
    statuses = {tensor.name: tensor.status for tensor in found.tensors if tensor.name in names}
    assert set(statuses) == names and set(statuses.values()) <= {"mismatch"}, statuses
    assert found.num_bit_exact == len([t for t in found.tensors if t.name not in names and t.status == "bit-exact"])


def flipped(honest: Any) -> Any:
    """A function or method, of whose result (or of the codes in it) one bit is another."""

    def mutant(*arguments: Any) -> Any:
        result = honest(*arguments)
        if isinstance(result, np.ndarray):
            result = np.array(result, order="C")
        codes = getattr(result, "codes", result[0] if isinstance(result, tuple) else result)
        codes.reshape(-1).view(np.uint8)[:1] ^= 1
        return result

    return mutant


@pytest.mark.parametrize(
    ("kind", "owner", "name", "codec", "only_with_source"),
    [
        ("BSFP", tensor_proof, "decode_bsfp", "bsfp", False),
        ("BSFP, given codes", tensor_proof, "decode_bsfp", "bsfp", False),
        ("BSFP of stacked experts", tensor_proof, "decode_bsfp", "bsfp", False),
        ("BSFP of a source with MXFP4 experts", CarriedTensor, "from_tiles", "mxfp4", False),
        ("BSFP", encode, "cast_bsfp", "bsfp", True),
        ("BSFP of a source with MXFP4 experts", CarriedTensor, "to_tiles", "mxfp4", True),
        *((kind, encode, "encode_mxfp4", "mxfp4", True) for kind in CAST),
        ("MXFP4 of a source with MXFP4 experts, target referenced", CarriedTensor, "to_tiles", "mxfp4", True),
        ("MXFP4, target referenced", encode, "quantize_mxint8", "mxint8", True),
    ],
)  # fmt: skip
def test_a_decoder_or_encoder_that_errs_by_a_bit_is_found(
    made: Made, kind: str, owner: Any, name: str, codec: str, only_with_source: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, package = made(kind)
    records = [record for record in read_manifest(package).tensors if record.codec == codec]
    names = {record.name for record in records if record.carried is not None or owner is not CarriedTensor}
    monkeypatch.setattr(owner, name, flipped(getattr(owner, name)))
    assert_nothing_is_claimed(compare(package, source), names)
    if only_with_source:
        assert verify(package).ok
    else:
        assert_nothing_is_claimed(verify(package), names)


def arrays_of(package: Path) -> Iterator[tuple[Path, str]]:
    for path in sorted(package.glob("*.safetensors")):
        with safetensors.safe_open(path, "np") as file:
            yield from ((path, name) for name in file.keys())  # noqa: SIM118


@each_kind
def test_one_byte_of_any_array_under_true_hashes_is_found_or_nothing_is_claimed_of_it(
    made: Made, kind: str, tmp_path: Path
) -> None:
    """The last byte of some arrays of each part: codes, scales, residuals, escapes, and what is kept."""
    source, package = made(kind)
    chosen = {name.rpartition(".")[2]: (path.name, name) for path, name in arrays_of(package)}
    for number, (file, name) in enumerate(chosen.values()):
        copy = Path(shutil.copytree(package, tmp_path / str(number)))
        raw = (copy / file).read_bytes()
        begin = int.from_bytes(raw[:8], "little") + 8
        first, last = json.loads(raw[8:begin])[name]["data_offsets"]
        if first == last:
            continue
        patch_array(copy / file, name, last - first - 1, bytes([raw[begin + last - 1] ^ 1]))
        forge(copy)
        honest, found = compare(package, source), compare(copy, source)
        if found.ok:  # of this tensor's draft, or of its values, no bit is claimed
            tensors = [t for t in honest.tensors if name == t.name or name.rpartition(".")[0] == t.name]
            assert tensors and name not in {t.name for t in tensors}, name
            assert not any(t.is_derived for t in tensors), name


def test_a_further_array_with_the_tensors_name_does_not_answer_for_the_planes(made: Made, tmp_path: Path) -> None:
    source, package = made("BSFP of stacked experts")
    copy = Path(shutil.copytree(package, tmp_path / "copy"))
    shard = copy / "bsfp.safetensors"
    arrays = safetensors.numpy.load_file(shard)
    name = next(record.name for record in read_manifest(copy).tensors if record.stack is not None)
    tensors = safetensors.numpy.load_file(source / "model.safetensors")
    arrays[f"{name}.residual_low"][0, 0, 0] ^= 1
    safetensors.numpy.save_file(arrays | {name: tensors[name]}, shard)
    forge(copy)
    assert_nothing_is_claimed(verify(copy), {name})


def test_a_certificate_of_an_earlier_version_is_read_shown_and_kept_byte_for_byte(made: Made, tmp_path: Path) -> None:
    source, package = made("MXFP4, target referenced")
    copy = Path(shutil.copytree(package, tmp_path / "copy"))
    write_certificate(copy, compare(copy, source))
    whole = read_manifest(copy).certificate
    assert whole is not None
    assert (whole.num_bit_exact, whole.num_rebuilt, whole.num_derived, whole.num_kept) == (0, 0, 8, 4)
    assert whole.proof == (
        "0 of 12 tensors bit-exact, rebuilt from the package and compared with the source; 4 kept as they are, the "
        "draft's codes of 8 derived again and equal"
    )

    def older(members: dict[str, Any]) -> None:
        for key in ("num_rebuilt", "num_derived", "num_kept"):
            del members["certificate"][key]
        members["certificate"]["num_bit_exact"] = 12

    forge(copy, older)
    manifest = read_manifest(copy)
    assert manifest.to_bytes() == (copy / "mxconv.json").read_bytes()
    assert isinstance(manifest.certificate, CertificateRecord) and manifest.certificate.proof == (
        "12 of 12 tensors called bit-exact, compared with the source, by an earlier version, which did not say what "
        "was rebuilt"
    )
