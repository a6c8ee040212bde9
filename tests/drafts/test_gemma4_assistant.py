"""Gemma 4's assistants against transformers, in packages, and below targets that they were not made for."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import write_tiny_tokenizer
from family_checkpoints import SIZES, make_model, write_checkpoint
from gemma4_assistants import CLUSTERS, make_assistant, write_assistant
from loaded_packages import pack
from reader_levels import specs
from tiny_levels import by_hand, decoder_of, speculate

from mxconv.drafts.gemma4_assistant import Assistant, AssistantConfig
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy

FAMILY = "gemma4"  # the last two of its six layers read the keys of the two before
IDS = [3, 17, 40, 8, 22, 9, 65, 31, 2, 77, 12, 50, 33, 61]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("assistants")
    write_checkpoint(make_model(FAMILY), folder / "source")
    write_tiny_tokenizer(folder / "source" / "tokenizer.json", SIZES["vocab_size"])
    for name, changes in (("whole", {}), ("clustered", CLUSTERS)):
        write_assistant(folder / name, make_assistant(**changes))
    draft = f"gemma4-assistant:{folder / 'clustered'}"
    pack(folder / "source", folder / "package", drafts=(draft, "prompt-lookup"))
    return folder


@pytest.mark.parametrize(("name", "changes"), [("whole", {}), ("clustered", CLUSTERS)])
def test_tokens_and_states_are_those_of_transformers(folder: Path, name: str, changes: dict[str, Any]) -> None:
    """Some tokens after a text, each from the state before it, over keys and values of the text alone."""
    target, model = make_model(FAMILY), make_assistant(**changes)
    num_past = len(IDS) - 3
    with torch.no_grad():
        inner = target.model(torch.tensor([IDS[:num_past]]), return_shared_kv_states=True, use_cache=False)
    state, table = inner.last_hidden_state[:, -1:], target.get_input_embeddings()
    drafts = specs(folder, f"gemma4-assistant:HERE/{name}")
    with LoadedPackage(folder / "package", ["target"], "numpy", drafts=drafts) as loaded:
        decoder, assistant = decoder_of(loaded.levels[0]), loaded.levels[1].reader
        assert isinstance(assistant, Assistant)
        decoder.forward(IDS[:num_past], cache := KVCache(decoder.config))
        given = {layer.attention.parts.source: layer.attention.parts.window for layer in assistant.layers}
        kinds = {source: "sliding_attention" if window else "full_attention" for source, window in given.items()}
        shared = {source: [part[0].numpy() for part in inner.shared_kv_states[kind]] for source, kind in kinds.items()}
        for source, parts in shared.items():
            for own, part in zip(cache.read(source, range(num_past)), parts, strict=True):
                np.testing.assert_allclose(own[: len(part), :, : part.shape[2]], part, rtol=1e-4, atol=1e-4)
        cache.truncate(0)  # and to the last bit
        for source, (keys, values) in shared.items():
            cache.write(source, keys.transpose(1, 0, 2), values.transpose(1, 0, 2))
        cache.advance(num_past)
        for token in IDS[num_past:]:
            with torch.no_grad():
                expected = model(
                    inputs_embeds=torch.cat([table(torch.tensor([[token]])), state], dim=-1),
                    position_ids=torch.tensor([[num_past]]),
                    shared_kv_states=dict(inner.shared_kv_states),
                )
            made = assistant.advance(0, state[0].numpy(), [token], cache)
            (logits,), next_state = assistant.logits(0, made), assistant.after.multiply(made)[0]
            state, wanted = expected.last_hidden_state, expected.logits[0, 0].numpy()
            np.testing.assert_allclose(next_state, state[0, 0].numpy(), rtol=1e-5, atol=1e-5)
            known = np.isfinite(logits)
            assert known.sum() == (40 if changes else 96)
            np.testing.assert_allclose(logits[known], wanted[known], rtol=1e-5, atol=1e-5)
            assert (wanted[~known] < logits[known].min()).all()
        assert cache.length == num_past


def test_a_package_has_it_as_a_level(folder: Path) -> None:
    with LoadedPackage(folder / "package") as loaded:
        assert [level.record.kind for level in loaded.levels][2:] == ["gemma4-assistant", "prompt-lookup"]
        found, _ = speculate(Hierarchy(loaded.levels), IDS, 20)
        assert found == by_hand(decoder_of(loaded.levels[0]), IDS, 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"per_layer_config": {"2": {"head_dim": 16, "num_key_value_heads": 1}}},
            "layers without a window read 1 key-value heads of size 16; those of the target's last",
        ),
        (
            {"num_key_value_heads": 1},
            "layers with a window read 1 key-value heads of size 16; those of the target's last",
        ),
    ],
)
def test_an_assistant_of_a_target_with_other_heads_is_refused(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    values = json.loads((folder / "whole" / "config.json").read_text())
    config = AssistantConfig.from_dict(values | {"text_config": values["text_config"] | changes})
    with LoadedPackage(folder / "package", ["target"]) as loaded, pytest.raises(ModelError, match=message):
        config.below(loaded.target.config)


@pytest.mark.parametrize("what", ["twice", "missing"])
def test_an_order_without_every_token_is_refused(what: str, folder: Path, tmp_path: Path) -> None:
    model = make_assistant(**CLUSTERS)
    if what == "twice":
        model.masked_embedding.token_ordering[3] = model.masked_embedding.token_ordering[4]
        write_assistant(tmp_path / "other", model)
    else:
        write_assistant(tmp_path / "other", make_assistant())
        (tmp_path / "other" / "config.json").write_text((folder / "clustered" / "config.json").read_text())
    found = "missing" if what == "missing" else r"I64 \[96\]"
    message = rf"token_ordering is {found}; I64 \[96\] with every token once is required\."
    with pytest.raises(ModelError, match=message):
        LoadedPackage(folder / "package", ["target"], drafts=specs(tmp_path, "gemma4-assistant:HERE/other"))
