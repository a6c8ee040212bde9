"""Each client is a process of its own, because huggingface_hub keeps what its environment said."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import llama_tensors, write_index, write_safetensors, write_tiny_llama
from commands import run_forked
from hub_server import TOKEN, HubServer, commit_of

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
    found = fetch(hub, tmp_path / "cache", "org/tiny")
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
    "address",
    [
        "https://huggingface.co/org/tiny",
        "https://huggingface.co/org/tiny/",
        "http://www.huggingface.co/org/tiny?library=transformers#files",
        "HuggingFace.co/org/tiny",
        "https://hf.co/org/tiny/tree/refs%2Fpr%2F1",
        "hf.co/org/tiny/blob/refs%2Fpr%2F1/config.json",
        "https://huggingface.co/org/tiny/resolve/refs%2Fpr%2F1/model.safetensors?download=true",
        "https://huggingface.co/org/tiny/discussions/1",
        "https://huggingface.co/gpt2",
        "https://huggingface.co/gpt2/tree/main",
        "gpt2",
        "ENDPOINT/org/tiny",
        "ENDPOINT/org/tiny/tree/refs%2Fpr%2F1",
    ],
)
def test_addresses_of_pages_and_ids_without_an_owner_are_read(hub: HubServer, tmp_path: Path, address: str) -> None:
    other = hub.repositories["org/tiny"]["refs/pr/1"] = write_tiny_llama(tmp_path / "other", seed=1)
    hub.repositories["gpt2"] = {"main": write_tiny_llama(tmp_path / "old", seed=2)}
    if address != "gpt2":
        (tmp_path / "gpt2").mkdir()  # an address is never of a local folder
    found = fetch(hub, tmp_path / "cache", address.replace("ENDPOINT", hub.url))
    assert found["id"] == ("gpt2" if "gpt2" in address else "org/tiny")
    folder = other if "refs" in address else hub.repositories[found["id"]]["main"]
    assert found["commit"] == commit_of(folder)
    assert found["tensors"] == fetch(hub, tmp_path / "cache", str(folder))["tensors"]


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("https://huggingface.co/datasets/org/texts", "no address of a model; its Hub id owner/name is required."),
        ("https://huggingface.co/", "no address of a model; its Hub id owner/name is required."),
        ("hf.co/org/ti ny", "no address of a model; its Hub id owner/name is required."),
        (
            "https://huggingface.co/org/tiny/tree/main/sub",
            "the address of sub in the model org/tiny; a model's own files",
        ),
        ("https://hf.co/org/tiny/blob/main/a/b.safetensors", "the address of a/b.safetensors in the model org/tiny; a"),
        (
            "https://hf.co/org/tiny/blob/main/q4.GGUF",
            "the address of q4.GGUF in the model org/tiny; a model's own files",
        ),
        (
            "https://example.org/org/tiny",
            "protocol 'https'; one of s3, gs, gcs, az, abfs, abfss, hf, memory, a path or a Hub id is",
        ),
        (
            "https://huggingface.co.example.org/org/tiny",
            "protocol 'https'; one of s3, gs, gcs, az, abfs, abfss, hf, memory, a path",
        ),
        (
            "https://example.org/huggingface.co/org/tiny",
            "protocol 'https'; one of s3, gs, gcs, az, abfs, abfss, hf, memory, a path",
        ),
    ],
)
def test_other_addresses_are_refused(hub: HubServer, tmp_path: Path, address: str, error: str) -> None:
    assert fetch(hub, tmp_path / "cache", address)["error"].startswith(f"{address}: {error}")
    assert hub.requests == []


def test_a_revision_that_is_given_wins_over_an_address(hub: HubServer, tmp_path: Path) -> None:
    assert fetch(hub, tmp_path / "cache", "hf.co/org/tiny/tree/main", "main")["id"] == "org/tiny"
    hub.repositories["org/tiny"]["v1"] = other = write_tiny_llama(tmp_path / "other", seed=1)
    assert fetch(hub, tmp_path / "cache", "hf.co/org/tiny/tree/main", "v1")["commit"] == commit_of(other)


def test_an_adapter_is_known_by_its_files_alone(hub: HubServer, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    write_safetensors(adapter / "adapter_model.safetensors", {"a": np.ones(1, np.float16)})
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    hub.repositories["org/adapter"] = {"main": adapter}
    found = fetch(hub, tmp_path / "cache", "org/adapter")["error"]
    assert found.startswith("org/adapter: holds an adapter of 'org/base'; the weights of a whole model are required. ")
    assert "PeftModel.from_pretrained(model, 'org/adapter').merge_and_unload()" in found
    assert hub.downloads() == ["adapter_config.json"]


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


def test_a_download_that_breaks_off_is_continued(hub: HubServer, tmp_path: Path) -> None:
    hub.cut.add(NEEDED[3])
    found = fetch(hub, tmp_path / "cache", "org/tiny")
    assert sorted(found["tensors"]) == sorted(llama_tensors())
    assert hub.requests.count(f"GET /org/tiny/resolve/{found['commit']}/{NEEDED[3]}") == 2


def test_a_bin_is_downloaded_only_where_there_are_no_safetensors(hub: HubServer, tmp_path: Path) -> None:
    legacy = tmp_path / "legacy"
    legacy.mkdir()
    for name in ("pytorch_model.bin", "training_args.bin"):
        (legacy / name).write_bytes(b"PK")
    hub.repositories["org/old"] = {"main": legacy}
    error = fetch(hub, tmp_path / "cache", "org/old", WITHOUT_TORCH="1")["error"]
    assert "pytorch_model.bin: a PyTorch .bin checkpoint, and torch is not installed" in error
    assert hub.downloads() == ["pytorch_model.bin"]


def test_a_local_path_wins_over_an_id(hub: HubServer, tmp_path: Path) -> None:
    shutil.copytree(hub.repositories["org/tiny"]["main"], tmp_path / "org" / "tiny")
    found = fetch(hub, tmp_path / "cache", "org/tiny")
    assert found["commit"] is None and hub.requests == []


# errors

NO_SUCH_MODEL = (
    "no such local path, and no such model on the Hub or a private one (HTTP {}); an existing path or a model that "
    "you may read is required. Check the spelling; for a private model run `hf auth login` or set HF_TOKEN."
)
GATED = (
    "access is gated (HTTP 401); its terms must be accepted by the account whose token is used. Accept them on the "
    "model's page, then run `hf auth login` or set HF_TOKEN."
)
FORBIDDEN = (
    "the Hub refuses access (HTTP 403); a token that may read this model is required. Run `hf auth login` or set "
    "HF_TOKEN to such a token."
)
UNKNOWN_TOKEN = (
    "the Hub does not know the token (HTTP 401); a valid one, or none, is required. Run `hf auth login` again, or "
    "correct HF_TOKEN."
)
NO_REVISION = (
    "has no revision 'v9' (HTTP 404); a branch, tag or commit is required. Look at the model's page for the names."
)


@pytest.mark.parametrize(
    ("closed", "arguments", "token", "message"),
    [
        ("", ["org/none"], "", NO_SUCH_MODEL.format(401)),
        ("", ["org/none"], TOKEN, NO_SUCH_MODEL.format(404)),
        ("private", ["org/tiny"], "", NO_SUCH_MODEL.format(401)),
        ("gated", ["org/tiny"], "", GATED),
        ("forbidden", ["org/tiny"], TOKEN, FORBIDDEN),
        ("", ["org/tiny"], "hf_expired", UNKNOWN_TOKEN),
        ("", ["org/tiny", "v9"], "", NO_REVISION),
    ],
)
def test_what_the_hub_refuses_is_told(
    hub: HubServer, tmp_path: Path, closed: str, arguments: list[str], token: str, message: str
) -> None:
    tokens = {"HF_TOKEN": token} if token else {}
    if closed:
        getattr(hub, closed).add("org/tiny")
    assert fetch(hub, tmp_path / "cache", *arguments, **tokens) == {"error": f"{arguments[0]}: {message}"}
    assert hub.downloads() == []


def test_a_token_opens_private_and_gated_repositories(hub: HubServer, tmp_path: Path) -> None:
    hub.private.add("org/tiny")
    hub.gated.add("org/tiny")
    assert "commit" in fetch(hub, tmp_path / "cache", "org/tiny", HF_TOKEN=TOKEN)


def test_an_id_that_the_hub_client_refuses_is_refused(hub: HubServer, tmp_path: Path) -> None:
    error = fetch(hub, tmp_path / "cache", "org/a--b")["error"]
    assert error.startswith("org/a--b: no valid Hub id (")
    assert error.endswith("); owner/name is required. Check the spelling.")


def test_offline_mode_without_a_copy_is_refused(hub: HubServer, tmp_path: Path) -> None:
    assert fetch(hub, tmp_path / "cache", "org/tiny", HF_HUB_OFFLINE="1") == {
        "error": "org/tiny: no such local path, not in the cache, and offline mode is on; a local copy or a connection "
        "is required. Check the spelling, or unset HF_HUB_OFFLINE to download it."
    }


def test_no_connection_and_a_failing_hub_are_reported(hub: HubServer, tmp_path: Path) -> None:
    rest = (
        " and there is no complete copy in the cache; a connection to the Hub is required. "
        "Check the spelling of a path, the network and HF_ENDPOINT, and run again: finished files are kept."
    )
    hub.status = 500
    assert fetch(hub, tmp_path / "cache", "org/tiny") == {"error": f"org/tiny: the Hub failed (HTTP 500){rest}"}
    with socket.socket() as bound:  # bound and not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"
        error = fetch(hub, tmp_path / "cache", "org/tiny", HF_ENDPOINT=endpoint)["error"]
    assert error.startswith("org/tiny: the Hub cannot be reached (Connect") and error.endswith(f"){rest}")


def test_an_incomplete_copy_in_the_cache_is_not_used(hub: HubServer, tmp_path: Path) -> None:
    found = fetch(hub, tmp_path / "cache", "org/tiny")
    (Path(found["root"]) / NEEDED[4]).unlink()
    hub.status = 500
    assert fetch(hub, tmp_path / "cache", "org/tiny")["error"].startswith("org/tiny: the Hub failed (HTTP 500) and")


def test_a_cache_that_cannot_be_written_is_reported(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    error = fetch(hub, tmp_path / "cache", "org/tiny")["error"]
    assert error.startswith("org/tiny: the download failed (")
    assert error.endswith(
        "); room and permission to write to the Hub cache are required. "
        "Free some space, or set HF_HOME to another disk, and run again."
    )


def test_a_repository_without_weights_is_refused_before_anything_large_is_fetched(
    hub: HubServer, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "model.gguf").write_text("GGUF")
    hub.repositories["org/gguf"] = {"main": empty}
    error = fetch(hub, tmp_path / "cache", "org/gguf")["error"]
    assert error.startswith("org/gguf: holds no weights, only model.gguf; model.safetensors, shards with an index, or")
    assert hub.downloads() == []


def test_an_index_that_names_what_the_repository_lacks_is_refused(hub: HubServer, tmp_path: Path) -> None:
    lying = tmp_path / "lying"
    write_safetensors(lying / "a.safetensors", {"a": np.ones(1, np.float16)})
    write_index(lying, {"a": "a.safetensors", "b": "b.safetensors"})
    hub.repositories["org/lying"] = {"main": lying}
    assert fetch(hub, tmp_path / "cache", "org/lying") == {
        "error": "org/lying: model.safetensors.index.json names shard 'b.safetensors', which the repository does not "
        "have; every shard is required. Try another --revision, or tell the model's owner."
    }
    write_index(lying, {"a": "../../../../a.safetensors"})
    error = fetch(hub, tmp_path / "cache", "org/lying")["error"]
    assert "tensor 'a' is in '../../../../a.safetensors'; a relative path inside the index's folder" in error
    assert "a.safetensors" not in hub.downloads()
