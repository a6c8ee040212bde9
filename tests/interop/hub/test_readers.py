"""Drafts that read hidden states, on a hub: accelerators as they are, and packages of them, by their ids."""

import json
from pathlib import Path

import pytest
from eagle3_heads import eagle3_config, write_eagle3
from hub_client import Client
from hub_server import HubServer
from packages import files_of
from safetensors.numpy import load_file
from speculators import speculator_config, write_speculator
from spires import spire_config, spire_tensors, write_spire
from trained_levels import TRAINED

KINDS = ("speculator", "spire", "eagle3")


def write_reader(kind: str, folder: Path) -> Path:
    """A draft for the embedded model, in BF16 as that is."""
    target = json.loads((TRAINED / "config.json").read_text())
    hidden_size, vocab_size = target["hidden_size"], target["vocab_size"]
    if kind == "speculator":
        return write_speculator(folder, speculator_config(hidden_size, vocab_size), "BF16")
    if kind == "eagle3":
        return write_eagle3(folder, eagle3_config(vocab_size, hidden_size), "BF16")
    config = spire_config(target, [target["num_hidden_layers"] - 1])
    return write_spire(folder, config, spire_tensors(load_file(TRAINED / "model.safetensors"), config), "BF16")


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_is_pushed_pulled_and_used_by_its_id(kind: str, hub: HubServer, client: Client, tmp_path: Path) -> None:
    source = write_reader(kind, tmp_path / "source")
    hub.repositories["org/draft"] = {"main": source}
    client("quantize", TRAINED, "-o", "target")
    client("quantize", source, "-o", "draft", "--codec", "bsfp")
    client("push", "draft", "me/draft")
    card = (hub.repositories["me/draft"]["main"] / "README.md").read_text()
    assert f"mxconv generate TARGET_PACKAGE --draft {kind}:me/draft" in card and "llama-cli" not in card
    client("pull", "me/draft", "-o", "pulled")
    assert files_of(tmp_path / "pulled") == files_of(tmp_path / "draft")
    asked = ("--prompt", "import os", "--levels", "target", "--max-new-tokens", "12", "--check")
    for spec in (f"{kind}:org/draft", f"{kind}:me/draft", f"{kind}:pulled"):
        made = client("generate", "target", *asked, "--draft", spec, "--num-draft-tokens", "3")
        assert made["results"][0]["levels"][1]["num_proposed"] > 0
    hub.status = 503
    for spec in (f"{kind}:org/draft", f"{kind}:me/draft"):  # from the cache
        client("generate", "target", *asked, "--draft", spec, "--num-draft-tokens", "3")
    hub.status = None
    client("quantize", TRAINED, "-o", "both", "--draft", f"{kind}:me/draft")
    assert client("verify", "both")["ok"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_draft_comes_back_as_it_was(kind: str, client: Client, tmp_path: Path) -> None:
    source = write_reader(kind, tmp_path / "source")
    client("quantize", source, "-o", "draft", "--codec", "bsfp")
    client("export", "draft", "--to", "safetensors", "-o", "export")
    found, expected = (load_file(folder / "model.safetensors") for folder in (tmp_path / "export", source))
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
    assert (tmp_path / "export" / "config.json").read_bytes() == (source / "config.json").read_bytes()
