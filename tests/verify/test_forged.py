"""Damaged and forged packages: never accepted, never a crash, never an allocation that a number in a file asked for."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from forged_members import Members, error_of, is_accepted, put
from packages import MANIFEST, flip, forge, header_of, patch_array, quantize

from mxconv.errors import PackageError
from mxconv.verify import verify

NUM_FLIPS = 12  # a file


def test_no_flipped_byte_of_any_file_is_accepted(package: Path) -> None:
    assert is_accepted(package)
    for path in sorted(path for path in package.rglob("*") if path.is_file()):
        numbers = random.Random(path.name)
        num_bytes = path.stat().st_size
        for _ in range(NUM_FLIPS):
            place, mask = numbers.randrange(num_bytes), numbers.randrange(1, 256)
            flip(path, place, mask)
            assert not is_accepted(package), (path, place, mask)
            flip(path, place, mask)
    assert is_accepted(package)


def test_no_shortened_lengthened_missing_or_replaced_file_is_accepted(package: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for path in sorted(path for path in package.rglob("*") if path.is_file()):
        content = path.read_bytes()
        half = len(content) // 2
        for changed in (b"", content[:7], content[:half], content[:-1], content + b"\0", content + content):
            path.write_bytes(changed)
            assert not is_accepted(package), (path, len(changed))
        path.unlink()
        assert not is_accepted(package), path
        path.mkdir()
        assert not is_accepted(package), path
        path.rmdir()
        outside.write_bytes(content)
        for link in (outside, path, tmp_path / "none", Path("/dev/zero")):
            path.symlink_to(link)
            if path.name != MANIFEST or link != outside:  # a manifest may be a link, as in the cache of the Hub client
                assert not is_accepted(package), (path, link)
            path.unlink()
        os.mkfifo(path)
        assert not is_accepted(package), path
        path.unlink()
        path.write_bytes(content)
    assert is_accepted(package)


def test_what_is_wrong_with_a_file_is_said(package: Path, tmp_path: Path) -> None:
    config = package / "config.json"
    content = config.read_bytes()
    config.write_bytes(content + b" ")
    assert error_of(package) == (
        f"{config}: {len(content) + 1} bytes; the manifest says {len(content)}. "
        "The file is damaged or was replaced; convert again."
    )
    config.unlink()
    assert error_of(package).startswith(f"{config}: no such file; a readable file is required.")
    (tmp_path / "outside").write_bytes(content)
    config.symlink_to(tmp_path / "outside")
    assert error_of(package) == (f"{config}: leads out of the package; files inside it are required. Convert again.")
    config.unlink()
    config.symlink_to(config)
    assert error_of(package).startswith(f"{config}: its symbolic links form a loop;")
    config.unlink()
    config.write_bytes(content.replace(b"64", b"65").replace(b"16", b"17"))
    assert verify(package).damaged_files == ["config.json"]


def test_a_link_inside_the_package_is_followed(package: Path) -> None:
    (package / "config.json").rename(package / "real.json")
    (package / "config.json").symlink_to("real.json")
    assert is_accepted(package)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("files.0.path", "../m/config.json", "a relative path of plain names joined by '/' is required"),
        ("files.0.path", "x" * 5000, "File name too long"),
        ("files.0.path", "mxconv.json/x", "no such file"),
        ("files.0.num_bytes", -1, "greater than or equal to 0"),
        ("files.0.num_bytes", 2**63, "less than 9223372036854775808"),
        ("files.0.num_bytes", 10**400, "files.0.num_bytes: "),
        ("files.0.num_bytes", 2**62, "the manifest says 4,611,686,018,427,387,904"),
        ("files.0.num_bytes", "12", "valid integer"),
        ("files.0.sha256", "A" * 64, "should match pattern"),
        ("levels", [], "at least 1 item"),
        ("levels.0.files", ["none.safetensors"], "a level uses 'none.safetensors', which `files` does not list;"),
        ("levels.0.files", ["config.json"], "config.json: "),
        ("levels.1.num_draft_tokens", 1 << 40, "less than or equal to 64"),
        ("quantized.shape", [2**40, 2**40], " is required. The file is damaged; convert again."),
        ("quantized.shape", [2**62, 2**62], " is required. The file is damaged; convert again."),
        ("quantized.shape", [-16, 16], "greater than or equal to 0"),
        ("quantized.shape", [16], " [16]; a non-empty matrix is required. Convert again."),
        ("quantized.shape", [16, 0], " [16, 0]; a non-empty matrix is required. Convert again."),
        ("quantized.shape", [0, 16], " [0, 16]; a non-empty matrix is required. Convert again."),
        ("quantized.shape", [1] * 100_000, "a non-empty matrix is required. Convert again."),
        ("quantized.shape", [16.5, 16], "valid integer"),
        ("quantized.dtype", "F32", " of F32; BF16 or F16 is required. Convert again."),
        ("quantized.dtype", "I64", " of I64; BF16 or F16 is required. Convert again."),
        ("quantized.codec", "int4", "'mxfp4', 'mxint8', 'bsfp' or 'keep'"),
        ("quantized.name", "ghost", "array ghost."),
        ("format_version", 2, "format 'mxconv', version 2; this program reads 'mxconv', version 1. Convert again, or"),
        ("format", "zip", "format 'zip', version 1; this program reads"),
        ("surprise", 1, "surprise: Extra inputs are not permitted"),
        ("lossless", "yes", "lossless: Input should be a valid boolean"),
        ("bits_per_weight", "NaN", "bits_per_weight: "),
    ],
)
def test_a_forged_manifest_is_refused_with_a_reason(package: Path, path: str, value: object, message: str) -> None:
    forge(package, put(path, value))
    assert message in error_of(package)


def test_a_draft_without_its_files_is_refused(tmp_path: Path, made: dict[str, Path]) -> None:
    package = Path(shutil.copytree(made["mxfp4"], tmp_path / "p"))
    forge(package, put("levels.1.files", []))
    assert error_of(package).startswith(
        f"{package}: array lm_head.weight.elements is missing; I8 [6, 8, 64] is required."
    )


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all numbers, texts and truth values of a manifest."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not isinstance(value, dict | list):
        yield path
    for key, member in members:
        yield from leaves(member, (*path, key))


HOSTILE = [0, 1, -1, 2**31, 2**62, 2**63, 10**100, 1e308, -0.5, True, None, "", "..", "\ud800", "x" * 300, [], {}, [[]]]


def test_any_forged_member_of_a_manifest_raises_mxconv_errors_only(package: Path) -> None:
    original = (package / MANIFEST).read_bytes()
    places = list(leaves(json.loads(original)))
    numbers = random.Random(5)
    for _ in range(80):
        *keys, last = numbers.choice(places)
        value = numbers.choice(HOSTILE)

        def change(members: Members, keys: list[Any] = keys, last: Any = last, value: Any = value) -> None:
            place: Any = members
            for key in keys:
                place = place[key]
            place[last] = value

        forge(package, change)
        is_accepted(package)  # some members are free, such as a reason; the point is that nothing else is raised
        (package / MANIFEST).write_bytes(original)


def test_any_forged_header_of_a_shard_raises_mxconv_errors_only(package: Path) -> None:
    shard = sorted(package.glob("*.safetensors"))[0]
    content = shard.read_bytes()
    header, begin = header_of(shard)
    places = list(leaves(header))
    numbers = random.Random(6)
    for _ in range(40):
        changed = json.loads(json.dumps(header))
        *keys, last = numbers.choice(places)
        place = changed
        for key in keys:
            place = place[key]
        place[last] = numbers.choice(HOSTILE)
        text = json.dumps(changed).encode()
        shard.write_bytes(len(text).to_bytes(8, "little") + text + content[begin:])
        forge(package)
        assert not is_accepted(package) or keys == ["__metadata__"] or changed == header
    shard.write_bytes(content)


def test_a_manifest_nested_deeper_than_any_parser_goes_is_refused(package: Path) -> None:
    (package / MANIFEST).write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    assert "no valid JSON in UTF-8" in error_of(package) or "format None" in error_of(package)


def test_a_manifest_with_a_key_twice_is_refused(package: Path) -> None:
    text = (package / MANIFEST).read_text()
    (package / MANIFEST).write_text(text.replace('"lossless"', '"lossless": false,\n "lossless"', 1))
    assert "the JSON key 'lossless' occurs twice in one object" in error_of(package)


def test_two_levels_with_the_same_array_are_refused(tmp_path: Path, made: dict[str, Path]) -> None:
    package = Path(shutil.copytree(made["mxfp4"], tmp_path / "p"))
    shard = sorted(package.glob("mxfp4-*.safetensors"))[0]
    shutil.copy(shard, package / "again.safetensors")

    def change(members: Members) -> None:
        record = next(record for record in members["files"] if record["path"] == shard.name)
        members["files"].append(record | {"path": "again.safetensors"})
        members["levels"][0]["files"].append("again.safetensors")

    forge(package, change)
    assert " is also in again.safetensors; once is required. Convert again." in error_of(package)


@pytest.fixture(scope="module")
def whole_planes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bsfp package of one matrix whose rows differ in scale, so that it has row shifts and escapes."""
    folder = tmp_path_factory.mktemp("planes")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 256)) * 2.0 ** -(np.arange(64) % 11)[:, None] * 0.1
    weights[:, ::16] *= 2.0**-9
    path = write_safetensors(folder / "w.safetensors", {"w": weights.astype(ml_dtypes.bfloat16)})
    segments = quantize(path, folder / "w", codec="bsfp").tensors[0].segments
    assert segments is not None and len(segments.starts) == 8 and segments.num_escapes > 300
    return folder / "w"


@pytest.fixture
def planes(whole_planes: Path, tmp_path: Path) -> Path:
    """A copy that the test may break."""
    return Path(shutil.copytree(whole_planes, tmp_path / "w"))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("quantized.segments", None, "tensor w: codec bsfp without segments. Convert again."),
        ("quantized.segments.num_escapes", 2**62, "array w.escape_positions is U8 "),
        ("quantized.segments.num_escapes", 0, "array w.escape_positions is U8 "),
        ("quantized.segments.num_escapes", -1, "greater than or equal to 0"),
        ("quantized.segments.residual_bits", 10, "residual width 10; BF16 takes one of (8, 9)."),
        ("quantized.segments.residual_bits", 13, "less than or equal to 12"),
        ("quantized.segments.starts", [], "starts are no 1 x 8 or 8 x 8 table; one start a code is required."),
        ("quantized.segments.starts", [[]] * 8, "starts are no 1 x 8 or 8 x 8 table"),
        ("quantized.segments.starts", [[2**31] * 8] * 8, "start 2147483648; 0 to "),
        ("quantized.segments.starts", [[10**30] * 8] * 8, "so that each residual stays finite."),
        ("quantized.segments.starts", [[-1] * 8] * 8, "start -1; 0 to "),
        ("quantized.segments.starts", [[0] * 8] * 7 + [[0] * 7], "starts are no 1 x 8 or 8 x 8 table"),
        ("quantized.segments.starts", [list(range(8))] + [list(range(8, 0, -1))] * 7, "one order is required."),
        ("quantized.segments.starts", [list(range(8))], "row_shifts"),
        ("quantized.segments.levels", [1.0] * 7, "eight numbers from 0 to 65536 are required."),
        ("quantized.segments.levels", [1e300] * 8, "eight numbers from 0 to 65536 are required."),
        ("quantized.segments.rescale_factor", 0.0, "greater than or equal to "),
        ("quantized.segments.rescale_factor", 1e-45, "greater than or equal to "),
        ("quantized.segments.rescale_factor", 1.5, "less than or equal to 1"),
        ("quantized.dtype", "F16", "residual width 8; F16 takes one of (10, 11, 12)."),
    ],
)
def test_a_forged_segment_table_is_refused_with_a_reason(planes: Path, path: str, value: object, message: str) -> None:
    forge(planes, put(path, value))
    if message == "row_shifts":  # one row of starts needs no shifts; what they would be then is simply not read
        assert not is_accepted(planes)
    else:
        assert message in error_of(planes)


def test_row_shifts_out_of_the_finite_patterns_are_refused(planes: Path) -> None:
    patch_array(planes / "bsfp.safetensors", "w.row_shifts", 3, b"\x7f")  # 15 octaves up
    forge(planes, put("quantized.segments.starts", [[32000] * 8] * 8))
    assert error_of(planes) == (
        f"{planes}: tensor w: segment table: start {32000 + 15 * 128}; 0 to {0x7F80 - 256} is required, "
        "so that each residual stays finite."
    )


@pytest.mark.parametrize("factor", [2.0**-128, 0.5])
def test_a_forged_rescale_factor_raises_nothing_else(planes: Path, factor: float) -> None:
    forge(planes, put("quantized.segments.rescale_factor", factor))
    verification = verify(planes)
    assert not verification.lossless


@pytest.mark.parametrize(
    ("array", "offset", "content", "message"),
    [
        ("row_shifts", 3, b"\x7f", ""),
        ("row_shifts", 63, b"\x80", ""),
        ("escape_offsets", 8, (10**15).to_bytes(8, "little"), "they must agree."),
        ("escape_offsets", 0, (5).to_bytes(8, "little"), "they must agree."),
        ("escape_offsets", -8, (1 << 63).to_bytes(8, "little"), "they must agree."),
        ("escape_counts", 0, b"\xff" * 64, "they must agree."),
        ("escape_positions", 0, b"\x80", "escapes: position 128; 0 to 127 is required."),
        ("escape_positions", 0, b"\x7f" * 2, "escapes: a position occurs twice in a tile;"),
        ("escape_positions", 0, b"\x7f\x7e", "escapes: positions in a tile do not ascend, which is required."),
        ("escape_high", 0, b"\x00", ""),
        ("codes", 0, b"\x12", ""),
        ("residual_low", 0, b"\x12", ""),
    ],
)
def test_forged_planes_are_a_mismatch_or_refused_with_a_reason(
    planes: Path, array: str, offset: int, content: bytes, message: str
) -> None:
    patch_array(planes / "bsfp.safetensors", f"w.{array}", offset, content)
    forge(planes)
    try:
        verification = verify(planes)
    except PackageError as error:
        assert message and message in str(error)
    else:
        assert not verification.ok
        assert message in verification.tensors[0].detail
        assert bool(message) == bool(verification.tensors[0].detail)
