"""What was removed: manifests, recipes and `--draft` that name it are refused, with what to do instead."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import MANIFEST, forge, quantize, sealed_text

from mxconv.drafts.kinds import WORDS, parse_draft
from mxconv.errors import MxconvError, PackageError
from mxconv.package.manifest import read_manifest
from mxconv.package.recipe import read_recipe
from mxconv.package.removed import REMOVED_KINDS, REMOVED_MEMBERS
from mxconv.rebuild import write_recipe

KINDS = {kind: ({"kind": kind}, f"kind '{kind}', which was removed", REMOVED_KINDS[kind]) for kind in REMOVED_KINDS}
MEMBERS = {name: ({name: {"any": 1}}, what, instead) for name, (what, instead) in REMOVED_MEMBERS.items()}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("removed")
    quantize(write_tiny_llama(folder / "m", hidden_size=32), folder / "p")
    return folder / "p"


@pytest.mark.parametrize(("change", "what", "instead"), (KINDS | MEMBERS).values(), ids=KINDS | MEMBERS)
def test_a_file_that_names_it_says_who_wrote_it_and_what_to_do(
    package: Path, tmp_path: Path, change: dict[str, Any], what: str, instead: str
) -> None:
    recipe = tmp_path / "recipe.json"
    write_recipe(package, recipe)
    members = json.loads(recipe.read_bytes())
    members["package"]["levels"][1] |= change
    recipe.write_text(sealed_text(members | {"created_by": "mxconv 0.0.9"}))
    (tmp_path / MANIFEST).write_bytes((package / MANIFEST).read_bytes())

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
def test_what_is_no_level_is_left_to_the_schema(package: Path, tmp_path: Path, levels: object) -> None:
    members = json.loads((package / MANIFEST).read_bytes()) | {"levels": levels}
    (tmp_path / MANIFEST).write_text(sealed_text(members, "manifest_sha256"))
    with pytest.raises(PackageError, match=r"mxconv\.json: levels.*The file is damaged; convert again\.$"):
        read_manifest(tmp_path)
