"""The manifest as a file, and what this version has no more. Forged ones are in tests/verify."""

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from hypothesis import given
from hypothesis import strategies as st
from packages import MANIFEST, forge, quantize, sealed_text
from pydantic import ValidationError
from tiny_levels import record_of

from mxconv.checkpoint.regular_file import MAX_JSON_BYTES
from mxconv.drafts.kinds import WORDS, all_kinds, kind_named, parse_draft
from mxconv.errors import MxconvError, PackageError
from mxconv.package.level_record import check_relative
from mxconv.package.manifest import Manifest, read_manifest, replace_manifest
from mxconv.package.recipe import read_recipe
from mxconv.package.sealed_file import REMOVED_KINDS, REMOVED_MEMBERS
from mxconv.rebuild import write_recipe


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("made")
    quantize(write_tiny_llama(folder / "m", hidden_size=16), folder / "p", codec="bsfp", segments="paper")
    return (folder / "p/mxconv.json").read_bytes()


@pytest.fixture
def package(made: bytes, tmp_path: Path) -> Path:
    (tmp_path / "mxconv.json").write_bytes(made)
    return tmp_path


def error_of(package: Path) -> str:
    with pytest.raises(PackageError) as caught:
        read_manifest(package)
    return str(caught.value)


def test_writing_what_was_read_gives_the_same_bytes(package: Path, made: bytes) -> None:
    assert read_manifest(package).to_bytes() == made


def test_the_digest_is_the_sha256_of_the_file_with_zeros_in_its_place(made: bytes) -> None:
    digest = json.loads(made)["manifest_sha256"]
    assert made.count(digest.encode()) == 1
    assert hashlib.sha256(made.replace(digest.encode(), b"0" * 64)).hexdigest() == digest


def test_a_changed_manifest_is_damaged_even_where_its_meaning_is_the_same(package: Path, made: bytes) -> None:
    digest = json.loads(made)["manifest_sha256"]
    for changed in (made + b"\n", made.replace(b" ", b"  ", 1), json.dumps(json.loads(made)).encode()):
        (package / "mxconv.json").write_bytes(changed)
        assert error_of(package) == (
            f"{package}/mxconv.json: its SHA-256 is not the recorded {digest}; no byte of it may change. "
            "The file is damaged or was edited; convert again."
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; a readable file is required. Check the path, or download it again. "),
        (MAX_JSON_BYTES + 1, "100,000,001 bytes; at most 100,000,000 are read. Convert again."),
        *((content, "a JSON object is required.") for content in (b"", b"{", b"\xff{}", b"[]", b"3", b"nul")),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, content: bytes | int | None, message: str) -> None:
    if content is not None:
        (tmp_path / "mxconv.json").write_bytes(content if isinstance(content, bytes) else b"")
        os.truncate(tmp_path / "mxconv.json", content if isinstance(content, int) else len(content))
    found = error_of(tmp_path)
    assert found.startswith(f"{tmp_path}/mxconv.json: ") and message in found


@pytest.mark.parametrize(("text", "member"), [("streaming", "pages"), ("prompt-lookup", "sink")])
def test_a_member_of_another_kind_is_refused(text: str, member: str) -> None:
    record = record_of(parse_draft(text), "draft")
    assert type(record).model_validate(record.model_dump()) == record
    with pytest.raises(ValidationError, match=member):
        type(record).model_validate({**record.model_dump(), member: 1})


def test_a_schema_error_names_the_member_and_what_was_found(package: Path) -> None:
    def change(members: dict[str, Any]) -> None:
        members["levels"][0]["kind"] = "oracle"

    forge(package, change)
    message = error_of(package)
    assert message.startswith(f"{package}/mxconv.json: levels.0: Input tag 'oracle' found using 'kind' does not match ")
    assert all(
        repr(kind.level_kind or kind.name) in message
        for kind in (kind_named("target"), kind_named("self-draft"), *all_kinds())
    )
    assert message.endswith(" The file is damaged; convert again.")


def test_a_manifest_that_cannot_be_written_leaves_the_old_one(package: Path, made: bytes) -> None:
    (package / "mxconv.json.new").mkdir()
    message = re.escape(f"{package}/mxconv.json.new: cannot be written (Is a directory). Check permissions.")
    with pytest.raises(PackageError, match=f"^{message}$"):
        replace_manifest(package, read_manifest(package))
    assert (package / "mxconv.json").read_bytes() == made


ALLOWED = ["a", "a/b.c", "drafts/1-x/model.safetensors", "...", "ü/日本"]
OTHERS = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\\b", "C:a", "a\0", "a\n", "\u202ea"]


def test_plain_relative_paths_are_allowed_and_no_others() -> None:
    assert [check_relative(path) for path in ALLOWED] == ALLOWED
    for path in OTHERS:
        with pytest.raises(ValueError, match="a relative path of plain names joined by '/' is required"):
            check_relative(path)


@given(st.text())
def test_no_allowed_path_leaves_its_folder(path: str) -> None:
    try:
        check_relative(path)
    except ValueError:
        return
    root = Path("/root/of/package")
    assert not Path(path).is_absolute()
    assert (root / path).resolve().is_relative_to(root)
    assert (root / path).resolve() != root


def test_the_schema_describes_what_is_written(made: bytes) -> None:
    import jsonschema

    jsonschema.validate(json.loads(made), Manifest.model_json_schema())


KINDS = {kind: ({"kind": kind}, f"kind '{kind}', which was removed", REMOVED_KINDS[kind]) for kind in REMOVED_KINDS}
MEMBERS = {name: ({name: {"any": 1}}, what, instead) for name, (what, instead) in REMOVED_MEMBERS.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("removed")
    quantize(write_tiny_llama(folder / "m", hidden_size=32), folder / "p")
    return folder / "p"


@pytest.mark.parametrize(("change", "what", "instead"), (KINDS | MEMBERS).values(), ids=KINDS | MEMBERS)
def test_a_file_that_names_it_says_who_wrote_it_and_what_to_do(
    whole: Path, tmp_path: Path, change: dict[str, Any], what: str, instead: str
) -> None:
    recipe = tmp_path / "recipe.json"
    write_recipe(whole, recipe)
    members = json.loads(recipe.read_bytes())
    members["package"]["levels"][1] |= change
    recipe.write_text(sealed_text(members | {"created_by": "mxconv 0.0.9"}))
    (tmp_path / MANIFEST).write_bytes((whole / MANIFEST).read_bytes())

    def older(members: dict[str, Any]) -> None:
        members["levels"][1] |= change
        members["created_by"] = "mxconv 0.0.9"

    forge(tmp_path, older)
    for path, read in ((tmp_path / MANIFEST, lambda path: read_manifest(path.parent)), (recipe, read_recipe)):
        with pytest.raises(PackageError) as caught:
            read(path)
        assert str(caught.value) == (
            f"{path}: level 'mxfp4': {what}, written by 'mxconv 0.0.9'; one that this version has is required. Use the "
            f"version that wrote it, or convert again. {instead}."
        )


@pytest.mark.parametrize("kind", REMOVED_KINDS)
def test_a_draft_of_a_removed_kind_says_what_to_take(kind: str) -> None:
    assert kind not in WORDS
    for text in (kind, f"{kind}:PATH", f"{kind},bits=4"):
        message = f"--draft {text}: kind '{kind}', which was removed; another kind is required. {REMOVED_KINDS[kind]}."
        with pytest.raises(MxconvError, match=f"^{re.escape(message)}$"):
            parse_draft(text)


@pytest.mark.parametrize("levels", [None, 3, ["x"], [{}], [{"kind": ["int8-kv"]}]])
def test_what_is_no_level_is_left_to_the_schema(whole: Path, tmp_path: Path, levels: object) -> None:
    members = json.loads((whole / MANIFEST).read_bytes()) | {"levels": levels}
    (tmp_path / MANIFEST).write_text(sealed_text(members, "manifest_sha256"))
    with pytest.raises(PackageError, match=r"mxconv\.json: levels.*The file is damaged; convert again\.$"):
        read_manifest(tmp_path)
