"""What all drafts that read hidden states have in common: their places, what they cannot read, whom they do not fit."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import TINY_LLAMA, llama_tensors
from gemma4_assistants import CLUSTERS, make_assistant
from head_files import (
    dflash_config,
    eagle3_config,
    eagle3_tensors,
    halves,
    open_eagle3,
    write_tensors,
)
from packages import quantize
from reader_files import WRITERS
from reader_levels import PLACES, SELECTIONS, VOCAB_SIZE, check_all, check_place, open_reader, specs
from speculators import speculator_config, speculator_tensors
from spires import spire_config, spire_tensors
from tiny_levels import by_hand, decoder_of, speculate
from trained_levels import PROMPTS, write_noisy, write_padded

from mxconv.arrays import F32
from mxconv.drafts.dflash import DflashConfig
from mxconv.drafts.eagle3 import Eagle3Config
from mxconv.drafts.gemma4_assistant import AssistantConfig
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.reader_kind import ReaderConfig
from mxconv.drafts.speculator import SpeculatorConfig
from mxconv.drafts.spire import SpireConfig
from mxconv.engine.cache import KVCache
from mxconv.engine.sequence_rows import Reads, States
from mxconv.errors import ModelError, MxconvError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import Selection
from mxconv.speculation.session import HiddenStates
from mxconv.text.distribution import Penalties, Sampling


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of every kind a draft and a 4-bit copy of it; a package that has each as a level; a model with padded rows."""
    folder = tmp_path_factory.mktemp("readers")
    source, noisy = write_noisy(folder / "source", 0.0), write_noisy(folder / "noisy")
    for kind, write in WRITERS.items():
        quantize(write(folder / kind), folder / f"{kind}-mxfp4", lm_head="quantize")
        drafts = (f"checkpoint:{noisy}", f"{kind}:{folder / kind}", "prompt-lookup")
        quantize(source, folder / f"{kind}-package", drafts=drafts)
    quantize(write_padded(folder / "padded"), folder / "padded-package")
    return folder


SPECS = (
    "speculator:HERE/speculator",
    "speculator:HERE/speculator,num_candidates=4",
    "speculator:HERE/speculator-mxfp4",
    "spire:HERE/spire",
    "spire:HERE/spire-mxfp4",
    "eagle3:HERE/eagle3",
    "eagle3:HERE/eagle3-mxfp4",
    "medusa:HERE/medusa",
    "medusa:HERE/medusa-mxfp4",
    "dflash:HERE/dflash",
    "dflash:HERE/dflash-mxfp4",
)


@pytest.mark.parametrize(
    ("spec", "place"),
    [*zip(SPECS, cycle(PLACES), strict=False), *zip(SPECS, islice(cycle(PLACES), 1, None), strict=False)],
)
def test_the_text_is_the_targets(folder: Path, spec: str, place: str) -> None:
    levels, tree = PLACES[place]
    with LoadedPackage(folder / "spire-package", levels, drafts=specs(folder, spec)) as loaded:
        for selection in SELECTIONS.values():
            check_place(loaded.levels, tree, selection)


@pytest.mark.parametrize(
    ("selection", "tree"),
    [
        (Selection(Sampling(0.8), "rejection", 7), 12),
        (Selection(Sampling(0.8), "block", 7), 12),
        (Selection(penalties=Penalties(1.3, 0.5, 0.25)), "chain"),
    ],
    ids=["rejection", "block", "penalties"],
)
@pytest.mark.parametrize("spec", [*(f"{kind}:HERE/{kind}" for kind in WRITERS), SPECS[1]])
def test_under_rejection_and_penalties_too(folder: Path, spec: str, tree: int | str, selection: Selection) -> None:
    with LoadedPackage(folder / "spire-package", ["target"], drafts=specs(folder, spec)) as loaded:
        check_place(loaded.levels, tree, selection)


@pytest.mark.parametrize(
    ("kind", "tree"), [("speculator", "chain"), ("spire", "chain"), ("spire", 12), ("eagle3", 12), ("medusa", 12)]
)
def test_it_reads_the_states_of_a_plain_pass(
    folder: Path, kind: str, tree: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit, whatever was proposed in between."""
    contexts: list[list[int]] = []
    seen: list[tuple[list[int], Reads, int, F32]] = []
    read = HiddenStates.read

    def noting(asked: Callable[..., Proposal]) -> Callable[..., Proposal]:
        def note_context(self: PassDraft, context: Sequence[int], *others: Any) -> Proposal:
            contexts.append(list(context))
            return asked(self, context, *others)

        return note_context

    def note_states(self: HiddenStates, reads: Reads, start: int, stop: int) -> F32:
        seen.append((contexts[-1], reads, start, read(self, reads, start, stop).copy()))
        return seen[-1][-1]

    monkeypatch.setattr(PassDraft, "propose", noting(PassDraft.propose))
    monkeypatch.setattr(HiddenStates, "read", note_states)
    with LoadedPackage(folder / "spire-package", ["target"], drafts=specs(folder, f"{kind}:HERE/{kind}")) as loaded:
        check_all(loaded.levels, [3], tree, SELECTIONS["greedy"])
        decoder = decoder_of(loaded.levels[0])
        for context, reads, start, values in seen:
            states = States(reads.layers, reads.normed_last)
            decoder.forward(context[:-1], KVCache(decoder.config), states=states)
            assert states.values is not None
            np.testing.assert_array_equal(values, states.values[:, start : start + values.shape[1]])
    assert len(seen) > 20


@pytest.mark.parametrize("kind", WRITERS)
def test_a_package_has_it_as_a_level_between_models_and_look_ups(folder: Path, kind: str) -> None:
    with LoadedPackage(folder / f"{kind}-package") as loaded:
        assert [level.name for level in loaded.levels] == ["target", "mxfp4", "noisy", kind, "prompt-lookup"]
        assert loaded.levels[3].record.kind == kind
        for selection in SELECTIONS.values():
            check_all(loaded.levels, "auto", "auto", selection)


@pytest.mark.parametrize("kind", WRITERS)
def test_orders_that_make_no_sense_are_refused(folder: Path, kind: str, tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match=f"{kind}: reads the target's states, with checkpoint below it"):
        quantize(folder / "source", tmp_path / "p", drafts=(f"{kind}:{folder}/{kind}", f"checkpoint:{folder}/noisy"))
    message = rf"level {kind} is no model .* and noisy is below it"
    with (
        LoadedPackage(folder / f"{kind}-package", ["target", kind, "noisy"]) as loaded,
        pytest.raises(ModelError, match=message),
    ):
        Hierarchy(loaded.levels)


@pytest.mark.parametrize(("kind", "tree"), [*zip(WRITERS, (12, "chain", 12, "chain", 12), strict=True)])
def test_texts_that_it_cannot_read(folder: Path, kind: str, tree: int | str) -> None:
    """One token, which no state has chosen; padding that it has no row for, and that the target may say; no room."""
    with LoadedPackage(folder / "padded-package", ["target"], drafts=specs(folder, f"{kind}:HERE/{kind}")) as loaded:
        decoder, hierarchy = decoder_of(loaded.levels[0]), Hierarchy(loaded.levels, [3], [0.0], tree)
        texts = [([5], 4), ([5, 1030], 4), ([1030, 5, 6], 4), ([7] * 508, 4)]
        texts += [(loaded.tokenizer.encode(prompt), 40) for prompt in PROMPTS]
        said = 0
        for ids, num_tokens in texts:
            found, generation = speculate(hierarchy, ids, num_tokens)
            assert found == by_hand(decoder, ids, num_tokens)
            said += max(generation.token_ids) >= VOCAB_SIZE
        assert said


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"hidden_size": 32}, "reads states of 32 numbers, and the target's have 64; the same hidden size is required"),
        ({"vocab_size": 999}, "a vocabulary of 999 for a target with 1024 tokens in 1024 rows; the target's own"),
        ({"vocab_size": 1025}, "a vocabulary of 1025 for a target with 1024 tokens in 1024 rows; the target's own"),
    ],
)
@pytest.mark.parametrize("kind", WRITERS)
def test_a_draft_of_another_target_is_refused(
    folder: Path, kind: str, sizes: dict[str, int], message: str, tmp_path: Path
) -> None:
    """Both when decoding and when converting, of which nothing is left."""
    other = WRITERS[kind](tmp_path / "other", **sizes)
    if "hidden_size" not in sizes or kind != "spire":  # heads of another size are no such layers
        with pytest.raises(ModelError, match=message):
            LoadedPackage(folder / "spire-package", ["target"], drafts=specs(tmp_path, f"{kind}:HERE/other"))
    with pytest.raises(ModelError, match=message):
        quantize(folder / "source", tmp_path / "p", drafts=(f"{kind}:{other}",))
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (
            "eagle3",
            {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]},
            "states of layers 1, 2, 4 .* from 0 to 3",
        ),
        ("dflash", {"aux_hidden_state_layer_ids": [1, 2, 4]}, "states of layers 1, 2, 4 .* from 0 to 3"),
        ("spire", {"target_layers": [1, 3]}, "reads layers up to 3, and the target's last is 2; layers of the target"),
        ("spire", {"model_type": "mlp_speculator"}, 'model_type is "mlp_speculator"; mxconv supports spire'),
    ],
)
def test_a_draft_that_reads_other_layers_or_is_another_is_refused(
    folder: Path, kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = WRITERS[kind](tmp_path / "other") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=message):
        LoadedPackage(folder / "spire-package", ["target"], drafts=specs(tmp_path, f"{kind}:HERE/other"))
    with pytest.raises(ModelError, match=message):
        quantize(folder / "source", tmp_path / "p", drafts=(f"{kind}:{tmp_path / 'other'}",))
    assert not (tmp_path / "p").exists()


# ---- what config.json and tensors are refused for ----

SMALL_SIZE, SMALL_VOCAB = 64, 60
KNOWN = [3, 4, 8, 9, 15, 17, 22, 30, 31, 44, 45, 58]
EAGLE3 = eagle3_config(SMALL_VOCAB, SMALL_SIZE, {"draft_vocab_size": len(KNOWN)})
DFLASH = dflash_config(SMALL_VOCAB, SMALL_SIZE)
SPECULATOR = speculator_config(SMALL_SIZE, SMALL_VOCAB)
SPIRE = spire_config(TINY_LLAMA | {"num_hidden_layers": 4}, (1, 3))
ASSISTANT = json.loads(make_assistant().config.to_json_string())
KINDS: dict[str, tuple[type[ReaderConfig], Mapping[str, Any]]] = {
    "eagle3": (Eagle3Config, EAGLE3),
    "dflash": (DflashConfig, DFLASH),
    "speculator": (SpeculatorConfig, SPECULATOR),
    "spire": (SpireConfig, SPIRE),
    "gemma4-assistant": (AssistantConfig, ASSISTANT),
}
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
TEXT_OF_3 = {"text_config": {"model_type": "gemma3_text"}}
GPT2 = {"transformer_layer_config": {"model_type": "gpt2"}}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("eagle3", {"speculators_model_type": "eagle"}, 'speculators_model_type is "eagle"; mxconv supports eagle3'),
        ("eagle3", {"draft_vocab_size": 61}, "is 61; at most the target's vocabulary, 60, is required"),
        ("eagle3", {"norm_before_fc": True, "fc_norm": True}, "fc_norm is true; with norm_before_fc, false is req"),
        ("eagle3", GPT2, 'model_type is "gpt2"; mxconv supports llama, qwen3'),
        ("eagle3", {LAYER_IDS: []}, r"layer_ids is \[\]; a list of 1 to 64 layer numbers, or null"),
        ("eagle3", {LAYER_IDS: [1, "2"]}, r'is \[1, "2"\]; a list of 1 to 64 layer numbers, or null'),
        ("dflash", {"speculators_model_type": "dspark"}, 'speculators_model_type is "dspark"; mxconv supports dflash'),
        ("dflash", {"draft_vocab_size": 61}, "is 61; at most the target's vocabulary, 60, is required"),
        ("dflash", {"target_hidden_size": 32}, "is 32; the layers' own hidden_size, 64, or null is required"),
        ("dflash", {"block_size": 1}, "block_size is 1; 2 to 64 rows are required"),
        ("dflash", {"mask_token_id": 60}, "mask_token_id is 60; a token from 0 to 59 is required"),
        ("dflash", {"mask_token_id": None}, "mask_token_id is null; a token from 0 to 59 is required"),
        ("dflash", GPT2, 'model_type is "gpt2"; mxconv supports llama, qwen3'),
        ("dflash", {"aux_hidden_state_layer_ids": ["1"]}, r'layer_ids is \["1"\]; a list of 1 to 64 layer'),
        ("speculator", {"model_type": "llama"}, 'model_type is "llama"; mxconv supports mlp_speculator'),
        ("speculator", {"n_predict": 65}, "n_predict is 65; at most 64 stages"),
        ("speculator", {"inner_dim": -1}, "inner_dim is -1; an integer from 1"),
        ("speculator", {"top_k_tokens_per_head": [4, 3]}, r"is \[4, 3\]; a list of n_predict, 3, numbers"),
        ("speculator", {"top_k_tokens_per_head": [4, 3, 0]}, r"is \[4, 3, 0\]; a list of n_predict, 3, numbers from"),
        ("spire", {"model_type": "llama"}, 'model_type is "llama"; mxconv supports spire'),
        ("spire", {"layer_type": "spire"}, 'layer_type is "spire"; mxconv supports llama, mistral, qwen2, qwen3'),
        ("spire", {"target_layers": None}, "is null; a list of num_hidden_layers, 2, numbers of layers from 0"),
        ("spire", {"target_layers": [1, -1]}, r"target_layers is \[1, -1\]; a list of num_hidden_layers, 2, numbers"),
        ("spire", {"target_layers": [1, True]}, r"is \[1, true\]; a list of num_hidden_layers, 2, numbers"),
        ("spire", {"sink": -1}, "sink is -1; an integer from 0 to 65536"),
        ("spire", {"window": 0}, "window is 0; an integer from 1 to 65536"),
        ("spire", {"window": "all"}, 'window is "all"; an integer from 1 to 65536'),
        ("spire", {"past_memory": "none"}, 'past_memory is "none"; mxconv supports target, embeddings'),
        ("gemma4-assistant", {"model_type": "gemma4"}, 'is "gemma4"; mxconv supports gemma4_assistant'),
        ("gemma4-assistant", TEXT_OF_3, 'is "gemma3_text"; mxconv supports gemma4_text'),
        ("gemma4-assistant", {"text_config": {"hidden_size_per_layer_input": 8}}, "_input is 8; 0 is required"),
        ("gemma4-assistant", {"text_config": {"enable_moe_block": True}}, "is true; false is required"),
        ("gemma4-assistant", CLUSTERS | {"num_centroids": 7}, "num_centroids is 7; a divisor of 96, and as many as"),
    ],
)
def test_configs(kind: str, changes: dict[str, Any], message: str) -> None:
    config, values = KINDS[kind]
    config.from_dict(values)
    changed = {key: values[key] | value if isinstance(value, dict) else value for key, value in changes.items()}
    with pytest.raises(ModelError, match=message):
        config.from_dict({**values, **changed})


@pytest.mark.parametrize(
    ("ids", "num_layers", "message"),
    [
        ([1, 5], 4, r"reads the states of layers 1, 5 \(eagle_aux_\w+\); different ones from 0 to 4"),
        ([2, 2], 4, "reads the states of layers 2, 2 "),
        (None, 2, "reads by default the states of layers 2, 1, -1 "),
    ],
)
def test_layers_that_a_target_does_not_have(ids: list[int] | None, num_layers: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Eagle3Config.from_dict(EAGLE3 | {LAYER_IDS: ids}).layers_of(num_layers)


TENSORS = {
    "eagle3": eagle3_tensors(EAGLE3, KNOWN),
    "speculator": speculator_tensors(SPECULATOR),
    "spire": spire_tensors(llama_tensors(TINY_LLAMA | {"num_hidden_layers": 4}, "F32"), SPIRE),
}


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("eagle3", {"fc.weight": None}, r"head: tensor fc.weight is missing; its shape \(64, 192\) is required"),
        ("eagle3", {"layers.0.hidden_norm.weight": None}, r"layers.0.hidden_norm.weight is missing; its shape \(64,\)"),
        ("eagle3", {"d2t": None}, "head: tensor d2t is missing; with 12 of 60 tokens it is required"),
        ("eagle3", {"d2t": np.zeros(11, np.int64)}, r"tensor d2t is I64 \[11\]; I64 \[12\] is required"),
        ("eagle3", {"d2t": np.zeros(12, np.int16)}, r"tensor d2t is I16 \[12\]; I64 \[12\] is required"),
        ("eagle3", {"d2t": np.full(12, 49, np.int64)}, "tensor d2t leads to token 60; 0 to 59 is required"),
        ("eagle3", {"d2t": np.full(12, -1, np.int64)}, "tensor d2t leads to token -1; 0 to 59 is required"),
        ("eagle3", {"d2t": np.full(12, 2**63 - 1, np.int64)}, "tensor d2t leads to token -?[0-9]+; 0 to 59 is"),
        ("eagle3", {"d2t": -np.arange(12)}, "tensor d2t leads to one token twice; a token each is required"),
        ("eagle3", {"t2d": np.ones(59, bool)}, r"tensor t2d is BOOL \[59\]; BOOL \[60\] is required"),
        ("eagle3", {"t2d": np.ones(60, np.uint8)}, r"tensor t2d is U8 \[60\]; BOOL \[60\] is required"),
        ("eagle3", {"t2d": np.arange(60) < 12}, "tensor t2d marks other tokens than d2t leads to; the same are"),
        ("speculator", {"speculator.head.2.weight": None}, r"head.2.weight is missing; its shape \(60, 48\)"),
        ("speculator", {"speculator.ln.0.bias": None}, r"tensor speculator.ln.0.bias is missing; its shape \(48,\)"),
        ("spire", {"spire.memory_weights": None}, r"tensor spire.memory_weights is missing; its shape \(2, 3\)"),
        ("spire", {"spire.memory_weights": np.ones((2, 2))}, r"has shape \(2, 2\); config.json requires \(2, 3\)"),
        ("spire", {"lm_head.weight": None}, r"tensor lm_head.weight is missing; its shape \(96, 64\) is required"),
        ("spire", {"lm_head.weight": np.ones((96, 63))}, r"has shape \(96, 63\); config.json requires \(96, 64\)"),
    ],
)
def test_tensors(kind: str, changes: dict[str, np.ndarray | None], message: str, tmp_path: Path) -> None:
    given = TENSORS[kind] | {name: array for name, array in changes.items() if array is not None}
    tensors = halves({name: array for name, array in given.items() if changes.get(name, array) is not None})
    folder = write_tensors(tmp_path / "head", dict(KINDS[kind][1]), tensors)
    with pytest.raises(ModelError, match=message):
        open_eagle3(folder) if kind == "eagle3" else open_reader(kind, folder)
