"""Checkpoints on the Hub. Each client is a process of its own: huggingface_hub keeps what its environment said."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_safetensors, write_tiny_llama
from commands import run_forked
from hub_server import TOKEN, HubServer, commit_of

from mxconv.checkpoint.hub import parse_address
from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import MxconvError

CLIENT = """
import hashlib, json, os, sys
if "WITHOUT_TORCH" in os.environ:  # whose import takes seconds
    sys.modules["torch"] = None
from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import MxconvError
try:
    checkpoint = open_checkpoint(sys.argv[1], revision=sys.argv[2] if len(sys.argv) > 2 else None)
except MxconvError as error:
    result = {"error": str(error)}
else:
    result = {
        "id": checkpoint.id,
        "commit": checkpoint.commit,
        "root": str(checkpoint.root),
        "weights": [str(path.relative_to(checkpoint.root)) for path in checkpoint.weight_files],
        "companions": [path.name for path in checkpoint.companion_files],
        "tensors": {name: hashlib.sha256(t.array().tobytes()).hexdigest() for name, t in checkpoint.tensors.items()},
    }
print(json.dumps(result))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model repository with things in it that no conversion needs."""
    folder = write_tiny_llama(tmp_path / "remote", num_shards=2)
    for name in ("README.md", "LICENSE", "pytorch_model.bin", "model.gguf", "original/consolidated.00.pth"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    write_safetensors(folder / "consolidated.safetensors", {"a": np.ones(1, np.float16)})
    return folder


@pytest.fixture
def hub(folder: Path) -> Iterator[HubServer]:
    with HubServer({"org/tiny": {"main": folder}}) as server:
        yield server


def fetch(hub: HubServer, cache: Path, *arguments: str, **environment: str) -> dict[str, Any]:
    """Open a checkpoint in a new process; returns what it found, or its error."""
    program = cache.parent / "client.py"
    program.write_text(CLIENT)
    run = run_forked((str(program), *arguments), hub.environment(cache, **environment), cache.parent)
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


NEEDED = [
    "LICENSE",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
]


def test_only_the_needed_files_are_downloaded_and_the_commit_is_recorded(hub: HubServer, tmp_path: Path) -> None:
    hub.private.add("org/tiny")
    hub.gated.add("org/tiny")
    found = fetch(hub, tmp_path / "cache", "org/tiny", HF_TOKEN=TOKEN)
    folder = hub.repositories["org/tiny"]["main"]
    assert found["id"] == "org/tiny" and found["commit"] == commit_of(folder)
    assert Path(found["root"]).is_relative_to(tmp_path / "cache")
    assert hub.downloads() == NEEDED
    assert found["weights"] == NEEDED[3:5]
    assert found["companions"] == ["LICENSE", "config.json", "generation_config.json", "tokenizer.json"]
    assert found["tensors"] == fetch(hub, tmp_path / "cache", str(folder))["tensors"]


def test_a_second_run_downloads_nothing_and_a_cached_model_opens_offline(hub: HubServer, tmp_path: Path) -> None:
    first = fetch(hub, tmp_path / "cache", "org/tiny")
    hub.requests.clear()
    assert fetch(hub, tmp_path / "cache", "org/tiny") == first
    assert hub.downloads() == []
    hub.requests.clear()
    assert fetch(hub, tmp_path / "cache", "org/tiny", HF_HUB_OFFLINE="1") == first
    assert hub.requests == []
    hub.status = 503
    assert fetch(hub, tmp_path / "cache", "org/tiny") == first
    assert fetch(hub, tmp_path / "cache", "org/tiny", first["commit"]) == first
    (Path(first["root"]) / NEEDED[4]).unlink()  # an incomplete copy is not used
    assert fetch(hub, tmp_path / "cache", "org/tiny")["error"].startswith("org/tiny: the Hub failed (HTTP 503) and")


def test_branches_and_commits_are_resolved(hub: HubServer, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other", seed=1)
    hub.repositories["org/tiny"]["refs/pr/1"] = other
    main = fetch(hub, tmp_path / "cache", "org/tiny", "main")
    by_branch = fetch(hub, tmp_path / "cache", "org/tiny", "refs/pr/1")
    by_commit = fetch(hub, tmp_path / "cache", "org/tiny", commit_of(other))
    assert by_branch["commit"] == by_commit["commit"] == commit_of(other) != main["commit"]
    assert by_branch["tensors"] == by_commit["tensors"] != main["tensors"]
    assert by_branch["weights"] == ["model.safetensors"]


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("https://huggingface.co/org/tiny", ("org/tiny", None)),
        ("https://huggingface.co/org/tiny/", ("org/tiny", None)),
        ("http://www.huggingface.co/org/tiny?library=transformers#files", ("org/tiny", None)),
        ("HuggingFace.co/org/tiny", ("org/tiny", None)),
        ("https://hf.co/org/tiny/tree/refs%2Fpr%2F1", ("org/tiny", "refs/pr/1")),
        ("hf.co/org/tiny/blob/refs%2Fpr%2F1/config.json", ("org/tiny", "refs/pr/1")),
        ("https://huggingface.co/org/tiny/resolve/v1/model.safetensors?download=true", ("org/tiny", "v1")),
        ("https://huggingface.co/org/tiny/discussions/1", ("org/tiny", None)),
        ("https://huggingface.co/gpt2", ("gpt2", None)),
        ("https://huggingface.co/gpt2/tree/main", ("gpt2", "main")),
        ("gpt2", ("gpt2", None)),
        ("http://mirror/org/tiny", ("org/tiny", None)),
        ("http://mirror/org/tiny/tree/refs%2Fpr%2F1", ("org/tiny", "refs/pr/1")),
    ],
)
def test_addresses_of_pages_and_ids_without_an_owner_are_read(
    monkeypatch: pytest.MonkeyPatch, address: str, found: tuple[str, str | None]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://mirror/")
    assert parse_address(address, None) == found
    assert parse_address(address, "v9") == (found[0], "v9")  # a revision that is given wins


OTHER = "protocol 'https'; one of s3, gs, gcs, az, abfs, abfss, hf, memory, a path or a Hub id is"


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("https://huggingface.co/datasets/org/texts", "no address of a model; its Hub id owner/name is required."),
        ("https://huggingface.co/", "no address of a model; its Hub id owner/name is required."),
        ("hf.co/org/ti ny", "no address of a model; its Hub id owner/name is required."),
        ("https://huggingface.co/org/tiny/tree/main/sub", "the address of sub in the model org/tiny; a model's own"),
        ("https://hf.co/org/tiny/blob/main/a/b.safetensors", "the address of a/b.safetensors in the model org/tiny; a"),
        ("https://hf.co/org/tiny/blob/main/q4.GGUF", "the address of q4.GGUF in the model org/tiny; a model's own"),
        ("https://example.org/org/tiny", OTHER),
        ("https://huggingface.co.example.org/org/tiny", OTHER),
        ("https://example.org/huggingface.co/org/tiny", OTHER),
    ],
)
def test_other_addresses_are_refused(address: str, error: str) -> None:
    with pytest.raises(MxconvError) as caught:
        open_checkpoint(address)
    assert str(caught.value).startswith(f"{address}: {error}")


def test_an_address_is_no_local_folder_and_a_local_path_wins_over_an_id(hub: HubServer, tmp_path: Path) -> None:
    hub.repositories["gpt2"] = {"main": (other := write_tiny_llama(tmp_path / "other", seed=1))}
    shutil.copytree(other, tmp_path / "org" / "tiny")
    (tmp_path / "gpt2").mkdir()
    found = fetch(hub, tmp_path / "cache", f"{hub.url}/gpt2/tree/main")
    assert (found["id"], found["commit"]) == ("gpt2", commit_of(other))
    assert fetch(hub, tmp_path / "cache", "org/tiny")["commit"] is None


@pytest.mark.parametrize(("lost", "lacking"), [("config.json", "config.json"), ("tokenizer.json", "tokenizer")])
def test_a_copy_that_another_program_left_incomplete_is_named(
    hub: HubServer, tmp_path: Path, lost: str, lacking: str
) -> None:
    root = Path(fetch(hub, tmp_path / "cache", "org/tiny")["root"])
    (root / lost).unlink()
    assert fetch(hub, tmp_path / "cache", "org/tiny", HF_HUB_OFFLINE="1") == {
        "error": f"org/tiny: the Hub is out of reach, and the copy in the cache has weights and no {lacking}; all "
        f"files of the model are required. Connect once to download the rest, or give {root} for what is there."
    }
    assert fetch(hub, tmp_path / "cache", str(root), HF_HUB_OFFLINE="1")["commit"] is None
    assert lost in fetch(hub, tmp_path / "cache", "org/tiny")["companions"]


def test_a_push_during_the_download_gives_one_commit_whole(hub: HubServer, tmp_path: Path) -> None:
    pushed = write_tiny_llama(tmp_path / "pushed", seed=1)
    (pushed / "chat_template.jinja").touch()

    def push(request: str) -> None:
        if request == "GET /api/models/org/tiny/revision/main":
            hub.repositories["org/tiny"] = {"main": pushed}

    hub.on_request = push
    found = fetch(hub, tmp_path / "cache", "org/tiny")
    assert found["commit"] == commit_of(pushed) and found["weights"] == ["model.safetensors"]
    assert found["companions"] == ["chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json"]


# errors

Prepare = Callable[[HubServer], object]
NOTHING: Prepare = lambda hub: None  # noqa: E731  a row's
NOBODY = "no such local path, and no such model on the Hub or a private one (HTTP {}); an existing path or a model that"
REFUSED: dict[str, tuple[Prepare, str, dict[str, str], str]] = {  # what is asked for, in which environment
    "none, to strangers": (NOTHING, "org/none", {}, NOBODY.format(401)),
    "none": (NOTHING, "org/none", {"HF_TOKEN": TOKEN}, NOBODY.format(404)),
    "private": (lambda hub: hub.private.add("org/tiny"), "org/tiny", {}, NOBODY.format(401)),
    "gated": (lambda hub: hub.gated.add("org/tiny"), "org/tiny", {}, "access is gated (HTTP 401); its terms must be"),
    "forbidden": (lambda hub: hub.forbidden.add("org/tiny"), "org/tiny", {}, "the Hub refuses access (HTTP 403); a to"),
    "an old token": (NOTHING, "org/tiny", {"HF_TOKEN": "hf_old"}, "the Hub does not know the token (HTTP 401); a"),
    "no revision": (NOTHING, "org/tiny v9", {}, "has no revision 'v9' (HTTP 404); a branch, tag or commit is requir"),
    "no id": (NOTHING, "org/a--b", {}, "no valid Hub id ("),
    "offline": (NOTHING, "org/tiny", {"HF_HUB_OFFLINE": "1"}, "not in the cache, and offline mode is on; a local copy"),
    "a failing hub": (lambda hub: setattr(hub, "status", 500), "org/tiny", {}, "the Hub failed (HTTP 500) and there i"),
    "no connection": (NOTHING, "org/tiny", {"HF_ENDPOINT": "http://127.0.0.1:1"}, "the Hub cannot be reached (Connect"),
    "a file as cache": (NOTHING, "org/tiny", {"HF_HOME": __file__}, "permission to write to the Hub cache are require"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_had_is_told(hub: HubServer, tmp_path: Path, what: str) -> None:
    prepare, arguments, environment, words = REFUSED[what]
    prepare(hub)
    assert words in fetch(hub, tmp_path / "cache", *arguments.split(), **environment)["error"]
    assert hub.downloads() == []


BASE, INDEX = json.dumps({"base_model_name_or_path": "org/base"}), "model.safetensors.index.json"
LISTED = '{"weight_map": {"a": "a.safetensors", "b": "%s"}}'
REPOSITORIES: dict[str, tuple[dict[str, str], str, list[str]]] = {  # files, and what is downloaded before the error
    "no weights": ({"model.gguf": "GGUF"}, "holds no weights, only model.gguf; model.safetensors, shards with an", []),
    "an adapter": (
        {"adapter_model.safetensors": "", "adapter_config.json": BASE},
        "holds an adapter of 'org/base'; the weights of a whole model are required. ",
        ["adapter_config.json"],
    ),
    "a .bin, where there are no safetensors": (
        {"pytorch_model.bin": "PK", "training_args.bin": "PK"},
        "pytorch_model.bin: a PyTorch .bin checkpoint, and torch is not installed",
        ["pytorch_model.bin"],
    ),
    "a shard that is not there": (
        {"a.safetensors": "", INDEX: LISTED % "b.safetensors"},
        "names shard 'b.safetensors', which the repository does not have; every shard is required. Try another",
        [INDEX],
    ),
    "a shard elsewhere": (
        {"a.safetensors": "", INDEX: LISTED % "../../../../a.safetensors"},
        "tensor 'b' is in '../../../../a.safetensors'; a relative path inside the index's folder",
        [INDEX],
    ),
}


@pytest.mark.parametrize("what", REPOSITORIES)
def test_what_is_no_whole_model_is_told_by_its_small_files(hub: HubServer, tmp_path: Path, what: str) -> None:
    files, words, downloaded = REPOSITORIES[what]
    (tmp_path / "other").mkdir()
    for name, text in files.items():
        (tmp_path / "other" / name).write_text(text)
    hub.repositories["org/other"] = {"main": tmp_path / "other"}
    assert words in fetch(hub, tmp_path / "cache", "org/other", WITHOUT_TORCH="1")["error"]
    assert hub.downloads() == downloaded
