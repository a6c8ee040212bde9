"""A repository that holds a recipe stands for the package: by id, pulled, and pushed over what was there."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hub_client import Client
from hub_server import HubServer
from packages import MANIFEST, files_of, sealed_text, with_compact_source

RECIPE = "mxconv-recipe.json"
TEXT = Path(__file__).parents[3] / "mxconv" / "convert.py"


@pytest.fixture
def package(client: Client, tmp_path: Path) -> Path:
    """Of org/base, whose draft was chosen by a text: its codes lie beside the recipe."""
    options = ["--codec", "bsfp", "--draft", "prompt-lookup", "--calibrate", TEXT, "--calibration-tokens", "256"]
    client("quantize", "org/base", "-o", tmp_path / "package", *options)
    return tmp_path / "package"


def test_a_recipe_is_pushed_pulled_and_built_once(
    hub: HubServer, client: Client, package: Path, tmp_path: Path
) -> None:
    pushed = client("push", package, "me/tiny", "--recipe")
    further = ["mxconv-recipe.files/draft.safetensors"]
    assert pushed["files"] == sorted(["README.md", RECIPE, *further])
    card = files_of(hub.repositories["me/tiny"]["main"])["README.md"].decode()
    assert "This repository holds a recipe: the hash of every file, and no weights of the model." in card

    pulled = client("pull", "me/tiny", "-o", tmp_path / "pulled")
    assert files_of(tmp_path / "pulled") == files_of(package) and pulled["commit"] == pushed["commit"]

    client("recipe", tmp_path / "pulled", "-o", tmp_path / "mine.json")
    assert client("pull", tmp_path / "mine.json")["commit"] is None

    error = client.error("inspect", "me/tiny")  # which builds nothing
    assert "me/tiny: holds the recipe of a package that was not built here yet" in error
    assert "mxconv pull me/tiny -o FOLDER" in error
    assert client("verify", "me/tiny", "--rebuild")["rebuilt"]
    (built,) = (path.parent for path in tmp_path.rglob(f"built/*/{MANIFEST}"))
    assert files_of(built) == files_of(package)
    (built / "config.json").touch()
    before = (built / "bsfp.safetensors").stat().st_mtime_ns
    hub.status = 503  # from the cache
    assert client("verify", "me/tiny")["ok"] and (built / "bsfp.safetensors").stat().st_mtime_ns == before


def test_a_recipe_with_a_compact_source_takes_it_from_the_hub(
    hub: HubServer, client: Client, package: Path, tmp_path: Path
) -> None:
    client("push", package, "me/tiny", "--recipe")
    path = hub.repositories["me/tiny"]["main"] / RECIPE
    path.write_text(sealed_text(with_compact_source(json.loads(path.read_bytes()))))
    for command in (("verify", "me/tiny"), ("pull", "me/tiny", "-o", tmp_path / "pulled")):
        error = client.error(*command)
        assert "'mxconv 0.1.0' wrote it with the source in compact files, which later versions do not read" in error
    (line,) = re.findall(r"mxconv (build \S+) --source 'org/base' -o FOLDER\.", error)
    client(*line.split(), "--source", "org/base", "-o", tmp_path / "built")
    assert files_of(tmp_path / "built") == files_of(package)


def test_a_recipe_replaces_a_package_and_a_package_a_recipe(hub: HubServer, client: Client, package: Path) -> None:
    client("push", package, "me/tiny")
    client("push", package, "me/tiny", "--recipe")
    found = files_of(hub.repositories["me/tiny"]["main"])
    assert {name for name in found if name[0] != "."} == {"README.md", RECIPE, "mxconv-recipe.files/draft.safetensors"}
    client("push", package, "me/tiny")
    found = files_of(hub.repositories["me/tiny"]["main"])
    assert {name for name in found if name[0] != "."} == {"README.md", *files_of(package)}


def test_a_repositorys_recipe_opens_no_path_of_its_choice(
    hub: HubServer, client: Client, bsfp: Path, tmp_path: Path
) -> None:
    client("recipe", bsfp, "-o", tmp_path / "mxconv-recipe.json")
    folder = tmp_path / "repository"
    folder.mkdir()
    shutil.move(tmp_path / "mxconv-recipe.json", folder)
    hub.repositories["me/local"] = {"main": folder}
    assert "a Hub id and commit are required of a repository" in client.error("verify", "me/local")
    assert "a Hub id and commit are required of a repository" in client.error("pull", "me/local", "-o", tmp_path / "p")
