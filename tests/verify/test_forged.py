"""Forged manifests and headers: never a crash, never an allocation that a number in a file asked for.

Forgery makes all hashes true again, so that only the checks of structure and numbers are left.
"""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forged_members import Members, error_of, is_accepted, put
from packages import MANIFEST, forge, header_of


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("files.0.path", "../m/config.json", "a relative path of plain names joined by '/' is required"),
        ("files.0.path", "/etc/passwd", "a relative path of plain names"),
        ("files.0.path", "a/../../b", "a relative path of plain names"),
        ("files.0.path", "a\\..\\b", "a relative path of plain names"),
        ("files.0.path", "C:b", "a relative path of plain names"),
        ("files.0.path", "", "a relative path of plain names"),
        ("files.0.path", "a\nb", "a relative path of plain names"),
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
@pytest.mark.usefixtures("is_frugal")
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


@pytest.mark.usefixtures("is_frugal")
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


@pytest.mark.usefixtures("is_frugal")
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
