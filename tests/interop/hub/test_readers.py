"""Drafts that read hidden states, on a hub: accelerators as they are, and packages of them, by their ids."""

import json
from pathlib import Path

import pytest
from dflash_heads import dflash_config, write_dflash
from eagle3_heads import eagle3_config, write_eagle3
from hub_client import Client
from hub_server import HubServer
from packages import files_of, quantize
from random_heads import write_heads
from safetensors.numpy import load_file
from speculators import speculator_config, write_speculator
from spires import spire_config, spire_tensors, write_spire
from trained_levels import TRAINED

from mxconv.interop.plain_safetensors import export_safetensors

KINDS = ("speculator", "spire", "eagle3", "medusa", "dflash")


def write_reader(kind: str, folder: Path) -> Path:
    """A draft for the embedded model, in BF16 as that is."""
    target = json.loads((TRAINED / "config.json").read_text())
    hidden_size, vocab_size = target["hidden_size"], target["vocab_size"]
    if kind == "speculator":
        return write_speculator(folder, speculator_config(hidden_size, vocab_size), "BF16")
    if kind == "medusa":
        write_heads(folder, kind, target, "BF16")
        return folder
    if kind == "eagle3":
        return write_eagle3(folder, eagle3_config(vocab_size, hidden_size), "BF16")
    if kind == "dflash":
        return write_dflash(folder, dflash_config(vocab_size, hidden_size), "BF16")
    config = spire_config(target, [target["num_hidden_layers"] - 1])
    return write_spire(folder, config, spire_tensors(load_file(TRAINED / "model.safetensors"), config), "BF16")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("readers") / "target"
    quantize(TRAINED, package)
    return package


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_is_pushed_pulled_used_by_its_id_and_exported(
    kind: str, target: Path, hub: HubServer, client: Client, tmp_path: Path
) -> None:
    source = write_reader(kind, tmp_path / "source")
    hub.repositories["org/draft"] = {"main": source}
    quantize(source, tmp_path / "draft", codec="bsfp")
    client("push", "draft", "me/draft")
    card = (hub.repositories["me/draft"]["main"] / "README.md").read_text()
    assert f"mxconv generate TARGET_PACKAGE --draft {kind}:me/draft" in card and "llama-cli" not in card
    client("pull", "me/draft", "-o", "pulled")
    assert files_of(tmp_path / "pulled") == files_of(tmp_path / "draft")
    words = ("generate", target, "--prompt", "import os", "--levels", "target", "--max-new-tokens", "12", "--check")
    for spec in (f"{kind}:org/draft", f"{kind}:me/draft"):
        made = client(*words, "--draft", spec, "--num-draft-tokens", "3")
        assert made["results"][0]["levels"][1]["num_proposed"] > 0
    hub.status = 503
    client(*words, "--draft", f"{kind}:me/draft", "--num-draft-tokens", "3")  # from the cache
    hub.status = None
    client("quantize", TRAINED, "-o", "both", "--draft", f"{kind}:me/draft")
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
