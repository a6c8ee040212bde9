"""Commands that take a package take the Hub id of one, too; a repository may hold a recipe in its place."""

import json
import re
import shutil
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from hub_client import Client
from hub_server import HubServer
from packages import MANIFEST, files_of, quantize, sealed_text, with_compact_source
from random_heads import write_heads
from reader_files import WRITERS
from safetensors.numpy import load_file
from trained_levels import TRAINED

from mxconv.errors import PackageError
from mxconv.interop.plain_safetensors import export_safetensors
from mxconv.package.package import Package

LARGE = "bsfp.safetensors"


def test_a_package_is_verified_and_inspected_by_its_id(hub: HubServer, client: Client, bsfp: Path) -> None:
    hub.repositories["me/tiny"] = {"main": bsfp, "v1": bsfp}
    found = client("verify", "me/tiny", "--revision", "v1")
    assert found["ok"] and found["lossless"] and found["num_bit_exact"] == found["num_tensors"]
    hub.requests.clear()
    by_id, by_path = client("inspect", "me/tiny"), client("inspect", bsfp)
    assert by_id["total"] == by_path["total"] and hub.downloads() == []
    hub.status = 503
    assert client("verify", "me/tiny", "--source", hub.repositories["org/base"]["main"])["ok"]  # from the cache
    assert client.error("verify", "me/tiny", "--write") == (
        "me/tiny: a package on the Hub; the certificate is written into a local folder. "
        "Download it first: mxconv pull me/tiny -o FOLDER"
    )


def test_links_of_a_snapshot_may_lead_to_blobs_and_nowhere_else(bsfp: Path, tmp_path: Path) -> None:
    """The layout of the Hub client's cache, with a file in the store that all repositories share."""
    repository = tmp_path / "hub" / "models--me--tiny"
    snapshot = repository / "snapshots" / "c0ffee"
    shutil.copytree(bsfp, snapshot)
    for name, home in (("config.json", repository), (LARGE, tmp_path / "hub")):
        (home / "blobs").mkdir()
        (snapshot / name).rename(home / "blobs" / name)
        (snapshot / name).symlink_to(home / "blobs" / name)
    with Package(snapshot) as package:
        assert package.has_target
    for elsewhere in (tmp_path / "secret", repository / "refs" / "main", repository / "snapshots" / "other" / "file"):
        elsewhere.parent.mkdir(parents=True, exist_ok=True)
        elsewhere.write_bytes((snapshot / "config.json").read_bytes())
        (snapshot / "config.json").unlink()
        (snapshot / "config.json").symlink_to(elsewhere)
        with pytest.raises(PackageError, match=r"config\.json: leads out of the package; files inside it are required"):
            Package(snapshot)


def test_a_target_by_id_goes_with_a_draft_package_by_id(hub: HubServer, client: Client, tmp_path: Path) -> None:
    small = write_tiny_llama(tmp_path / "small", seed=1, num_hidden_layers=1)
    quantize(small, tmp_path / "small-package", codec="bsfp")
    hub.repositories["me/small"] = {"main": tmp_path / "small-package"}
    result = client("quantize", "org/base", "-o", "package", "--draft", "package:me/small")
    assert [level["name"] for level in result["levels"]] == ["target", "mxfp4", "small"]
    assert client("verify", "package")["ok"]


def test_a_checkpoint_is_no_package(hub: HubServer, client: Client) -> None:
    assert client.error("verify", "org/base") == (
        "org/base: holds no mxconv.json; a repository that `mxconv push` wrote is required. "
        "Convert it first: mxconv quantize org/base -o FOLDER"
    )
    found = client("inspect", "org/base")
    hub.status = 503
    assert client("inspect", "org/base") == found  # from the cache
    assert client.error("verify", "no/such/folder").startswith("no/such/folder/mxconv.json: no such file;")


@pytest.mark.parametrize(
    ("typed", "name", "options"),
    [
        ("https://huggingface.co/org/base/tree/main", "base-mxfp4", ()),
        ("Old-1.5B", "Old-1.5B-bsfp", ("--codec", "bsfp")),
    ],
)
def test_a_model_is_quantized_as_its_id_is_typed(
    hub: HubServer, client: Client, typed: str, name: str, options: tuple[str, ...]
) -> None:
    hub.repositories["Old-1.5B"] = hub.repositories["org/base"]
    _, err = client.output("quantize", typed, *options, "--dry-run")
    assert err.splitlines()[0] == f"No --output was given: the package is ./{name}"
    assert not (client.folder / name).exists()
    assert client("quantize", typed, *options)["package"] == name
    with Package(client.folder / name) as package:
        assert package.manifest.source.id == ("Old-1.5B" if "Old" in typed else "org/base")
        assert package.manifest.source.commit is not None
    assert client("verify", name, "--source", typed)["ok"]
    error = client.failure("quantize", typed, *options)
    assert error.splitlines()[1] == (
        f"mxconv: {name}: exists; nothing is overwritten. Choose another output, or use --force."
    )
    assert client("quantize", typed, *options, "--force")["package"] == name


def test_the_address_of_a_package_is_one(hub: HubServer, client: Client, bsfp: Path) -> None:
    hub.repositories["me/tiny"] = {"main": bsfp, "v1": bsfp}
    assert client("verify", "https://hf.co/me/tiny/tree/v1")["ok"]
    assert client("inspect", "huggingface.co/me/tiny")["total"] == client("inspect", bsfp)["total"]
    assert client.error("verify", "hf.co/org/base") == (
        "hf.co/org/base: holds no mxconv.json; a repository that `mxconv push` wrote is required. "
        "Convert it first: mxconv quantize hf.co/org/base -o FOLDER"
    )
    assert client.error("quantize", "me/tiny", "-o", "p").startswith(
        "me/tiny: holds mxconv.json, so it is a package that mxconv wrote; a model's own weights are required. "
    )


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("readers") / "target"
    quantize(TRAINED, package)
    return package


def test_a_draft_is_pushed_pulled_used_by_its_id_and_exported(
    target: Path, hub: HubServer, client: Client, tmp_path: Path
) -> None:
    source = WRITERS["eagle3"](tmp_path / "source")
    hub.repositories["org/draft"] = {"main": source}
    quantize(source, tmp_path / "draft", codec="bsfp")
    client("push", "draft", "me/draft")
    card = (hub.repositories["me/draft"]["main"] / "README.md").read_text()
    assert "mxconv generate TARGET_PACKAGE --draft eagle3:me/draft" in card and "llama-cli" not in card
    client("pull", "me/draft", "-o", "pulled")
    assert files_of(tmp_path / "pulled") == files_of(tmp_path / "draft")
    words = ("generate", target, "--prompt", "import os", "--levels", "target", "--max-new-tokens", "12", "--check")
    for spec in ("eagle3:org/draft", "eagle3:me/draft"):
        made = client(*words, "--draft", spec, "--num-draft-tokens", "3")
        assert made["results"][0]["levels"][1]["num_proposed"] > 0
    hub.status = 503
    client(*words, "--draft", "eagle3:me/draft", "--num-draft-tokens", "3")  # from the cache
    hub.status = None
    client("quantize", TRAINED, "-o", "both", "--draft", "eagle3:me/draft")
    assert client("verify", "both")["ok"]
    export_safetensors(tmp_path / "pulled", tmp_path / "export")
    found, expected = (load_file(folder / "model.safetensors") for folder in (tmp_path / "export", source))
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
    assert (tmp_path / "export" / "config.json").read_bytes() == (source / "config.json").read_bytes()


def test_heads_in_a_file_of_torch_draft_by_their_id(
    target: Path, hub: HubServer, client: Client, tmp_path: Path
) -> None:
    config = json.loads((TRAINED / "config.json").read_text())
    write_heads(tmp_path / "medusa", "medusa", config, "F16", "medusa_lm_head.pt")
    hub.repositories["org/medusa"] = {"main": tmp_path / "medusa"}
    words = ("generate", target, "--prompt", "import os", "--levels", "target", "--max-new-tokens", "12", "--check")
    made = client(*words, "--draft", "medusa:org/medusa", "--num-draft-tokens", "3")
    assert made["results"][0]["levels"][1]["num_proposed"] > 0


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
