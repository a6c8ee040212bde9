"""A speculator that learns between requests: more is accepted, no text changes, and nothing but weights is written."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from batches import alone, assert_as_alone, run_all
from packages import quantize
from speculators import speculator_config, write_speculator
from tiny_levels import decoder_of
from trained_levels import PROMPTS, TRAINED

from mxconv.checkpoint.hashing import sha256_file
from mxconv.decode import TextModel, load
from mxconv.engine.states import States
from mxconv.errors import ModelError
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Request
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.text.distribution import Sampling
from mxconv.train import online_speculator
from mxconv.train.online_speculator import OnlineSpeculator, StateBuffer, learner_of

SELECTIONS = GREEDY, Selection(Sampling(0.8, top_p=0.95), "coupled", 7)
NEW_TOKENS = 24
CHAINS: dict[str, Any] = {"num_draft_tokens": [3], "confidence": [0.0], "tree": "chain"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target <- mxfp4 <- stand; tests copy it, since what is learned lies beside it."""
    folder = tmp_path_factory.mktemp("made") / "package"
    quantize(TRAINED, folder, drafts=("stand",))
    return folder


@pytest.fixture
def package(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "package")


@pytest.fixture
def model(package: Path) -> Iterator[TextModel]:
    with load(package, levels=["target"], num_threads=1) as model:
        yield model


def requests_to(model: TextModel) -> list[Request]:
    """Of every prompt a greedy answer and a drawn one."""
    ids = [model.encode(prompt) for prompt in PROMPTS]
    return [Request(prompt, NEW_TOKENS, (), selection) for prompt in ids for selection in SELECTIONS]


def catch_up(learner: OnlineSpeculator) -> None:
    while learner.is_behind:
        learner.learn()


def rate(learner: OnlineSpeculator, weights: Any) -> float:
    return learner.num_tokens[weights, "accepted"] / max(learner.num_tokens[weights, "proposed"], 1)


@pytest.mark.parametrize(
    ("levels", "draft", "options"),
    [
        (["target"], None, CHAINS),
        (["target"], "speculator:HERE", CHAINS | {"tree": 12}),
        (["target"], "speculator:HERE-4bit", CHAINS),
        (None, None, {"num_draft_tokens": "auto"}),
    ],
)
def test_more_is_accepted_and_no_token_and_no_logit_depends_on_it(
    levels: list[str] | None,
    draft: str | None,
    options: dict[str, Any],
    package: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LEARNING_RATE", "NEW_LEARNING_RATE"):  # few texts, which come again
        monkeypatch.setattr(online_speculator, name, 5e-3)
    given = write_speculator(tmp_path / "given", speculator_config(64, 1024, {"scale_input": True}))
    quantize(given, tmp_path / "given-4bit")
    drafts = [draft.replace("HERE", str(given))] if draft else []
    with load(package, drafts, levels=levels, num_threads=1) as model:
        learner, requests = learner_of(model, str(package)), requests_to(model)
        hierarchy = model.hierarchy(options)  # type: ignore[arg-type]
        names = [level.name for level in hierarchy.levels]
        assert names == [
            *(levels or ["target", "mxfp4"]),
            Path(drafts[0]).name if drafts else "learned",
            *([] if levels else ["stand"]),
        ]
        known = [alone(hierarchy.levels[0], request) for request in requests]
        engine = Engine(hierarchy, 4, learner=learner)
        for _ in range(6):
            sequences, heard = run_all(engine, requests)
            assert_as_alone(hierarchy.levels[0], requests, sequences, heard, known)
            catch_up(learner)
        assert learner.num_steps > 6
        if levels:
            assert rate(learner, "learned") > max(1.15 * rate(learner, "loaded"), 0.2)


def test_it_learns_from_answers_alone_by_the_targets_own_states(model: TextModel, package: Path) -> None:
    learner = learner_of(model, str(package))
    engine = Engine(model.hierarchy(CHAINS), learner=learner)  # type: ignore[arg-type]
    (request,) = requests_to(model)[:1]
    (sequence,), _ = run_all(engine, [request])
    ids, first = sequence.context, len(request.prompt) - 2
    states, tokens = learner._buffer._states, learner._buffer._tokens
    count = len(ids) - 4 - first  # of states with three tokens after the one that they choose
    assert len(learner._buffer) == count and learner._num_due == online_speculator.VISITS * count
    decoder, expected = decoder_of(model.loaded.levels[0]), States(normed_last=True)
    decoder.forward(ids, decoder.new_cache(), states=expected)
    assert expected.values is not None
    np.testing.assert_array_equal(states[:count], expected.values[0, first : first + count])
    for place in range(count):
        assert tokens[place].tolist() == ids[first + place : first + place + 5]
    whole = tokens[:count, 2:].ravel()
    assert set(whole.tolist()) <= set(sequence.generation.token_ids)


def test_new_states_replace_the_oldest_and_no_more_are_kept() -> None:
    buffer, random = StateBuffer(5, 2, 3), np.random.default_rng(0)
    rows = np.arange(12, dtype=np.int64)
    for part in (rows[:2], rows[2:7], rows[7:8]):
        buffer.add(np.stack([part, part], 1).astype(np.float32), np.stack([part] * 3, 1))
    assert len(buffer) == 5 and sorted(buffer._tokens[:, 0].tolist()) == [3, 4, 5, 6, 7]
    states, tokens = buffer.sample(64)
    assert set(tokens[:, 0].tolist()) == {3, 4, 5, 6, 7} and (states == tokens[:, :2]).all()
    many = random.integers(0, 9, (40, 3))
    buffer.add(np.zeros((40, 2), np.float32), many)
    assert sorted(buffer._tokens.tolist()) == sorted(many[-5:].tolist())


def test_what_is_saved_is_a_speculator_that_the_next_start_goes_on_with(model: TextModel, package: Path) -> None:
    before = {path.name: sha256_file(path) for path in package.iterdir() if path.is_file()}
    learner = learner_of(model, str(package))
    run_all(Engine(model.hierarchy(CHAINS), learner=learner), requests_to(model))  # type: ignore[arg-type]
    catch_up(learner)
    learner.save()
    folder = package.with_name("package.learned")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert sorted(path.name for path in package.parent.iterdir()) == ["package", "package.learned"]
    assert {path.name: sha256_file(path) for path in package.iterdir() if path.is_file()} == before
    if os.name == "posix":
        assert folder.stat().st_mode & 0o077 == 0 and (folder / "model.safetensors").stat().st_mode & 0o077 == 0
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    trained = learner._model.state_dict()
    assert set(tensors) == set(trained)
    for name, values in tensors.items():
        np.testing.assert_array_equal(values.astype(np.float32), trained[name].bfloat16().float().numpy())
    written = folder.stat().st_mtime_ns, (folder / "model.safetensors").stat().st_mtime_ns
    learner.save()  # nothing has changed since
    assert (folder.stat().st_mtime_ns, (folder / "model.safetensors").stat().st_mtime_ns) == written
    probe = np.random.default_rng(1).standard_normal((1, 64)).astype(np.float32)
    expected = learner._reader.logits(0, learner._reader.advance(0, learner._reader.begin(probe), [5]))
    for drafts in ((), (f"speculator:{folder}",)):
        with load(package, drafts, levels=["target"], num_threads=1) as other:
            reader = learner_of(other, str(package))._reader
            np.testing.assert_array_equal(reader.logits(0, reader.advance(0, reader.begin(probe), [5])), expected)
            answer = other.generate(PROMPTS[0], max_new_tokens=NEW_TOKENS, **CHAINS)
            assert answer.generation.trace.statistics[-1].num_proposed > 0


def test_a_large_speculator_keeps_its_embeddings_and_heads(
    model: TextModel, package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online_speculator, "MOST_TRAINED", 1000)
    learner = learner_of(model, str(package))
    before = {name: tensor.clone() for name, tensor in learner._model.state_dict().items()}
    run_all(Engine(model.hierarchy(CHAINS), learner=learner), requests_to(model))  # type: ignore[arg-type]
    catch_up(learner)
    for name, tensor in learner._model.state_dict().items():
        assert bool((tensor == before[name]).all()) == (".emb." in name or ".head." in name), name


def test_weights_that_a_step_would_ruin_stay(model: TextModel, package: Path) -> None:
    learner = learner_of(model, str(package))
    run_all(Engine(model.hierarchy(CHAINS), learner=learner), requests_to(model))  # type: ignore[arg-type]
    learner._buffer._states[:] = np.nan
    before = {name: tensor.clone() for name, tensor in learner._model.state_dict().items()}
    learner.learn()
    assert all(bool((tensor == before[name]).all()) for name, tensor in learner._model.state_dict().items())


def test_another_speculator_a_package_elsewhere_and_too_many_tokens_are_refused(
    model: TextModel, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match=r"owner/name is no folder; one is required, since .* mxconv pull owner/name"):
        learner_of(model, "owner/name")
    monkeypatch.setattr(online_speculator, "MOST_NEW", 1000)
    with pytest.raises(ModelError, match=r"1024 tokens with states of 64 numbers; at most 1,000 .* train speculator"):
        learner_of(model, str(package))
    write_speculator(tmp_path / "package.learned", speculator_config(64, 1024))
    given = write_speculator(tmp_path / "given", speculator_config(64, 1024, {"inner_dim": 32}))
    with (
        load(package, [f"speculator:{given}"], levels=["target"], num_threads=1) as other,
        pytest.raises(ModelError, match=r"package\.learned: holds a speculator of other sizes than level given"),
    ):
        learner_of(other, str(package))
