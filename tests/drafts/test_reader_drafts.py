"""What all drafts that read hidden states have in common: their places, what they cannot read, whom they do not fit."""

import json
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packages import quantize
from reader_files import WRITERS
from reader_levels import PLACES, SELECTIONS, VOCAB_SIZE, check_all, check_place, specs
from tiny_levels import assert_lossless, by_hand, decoder_of, speculate
from trained_levels import PROMPTS, write_noisy, write_padded

from mxconv.arrays import F32
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.sequence_rows import Reads, States
from mxconv.errors import ModelError, MxconvError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.model_draft import PassDraft
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import Selection
from mxconv.speculation.session import HiddenStates
from mxconv.text.distribution import Penalties, Sampling
from mxconv.text.messages import read_prompts


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


MODELS = Path(__file__).parents[2] / "examples" / "models"


def test_the_embedded_drafts_know_what_the_embedded_target_says(tmp_path: Path) -> None:
    """They are worth a token a round in trees, more than half a token as chains."""
    quantize(MODELS / "pylib-1.5m", tmp_path / "package", codec="bsfp")
    for kind in ("speculator", "spire"):
        drafts = specs(MODELS, f"{kind}:HERE/pylib-1.5m-{kind}")
        with LoadedPackage(tmp_path / "package", ["target"], drafts=drafts) as loaded:
            for tree, least in (("chain", 1.6), (12, 2.0)):
                num_rounds = num_tokens = 0
                for prompt in read_prompts(MODELS.parent / "prompts.jsonl")[:2]:
                    ids = loaded.tokenizer.encode(prompt)
                    generation = assert_lossless(Hierarchy(loaded.levels, [4], [0.0], tree), ids, 40)  # type: ignore[arg-type]
                    num_rounds += generation.trace.num_rounds - 1
                    num_tokens += len(generation.token_ids) - 1
                assert num_tokens / num_rounds > least
