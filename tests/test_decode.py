"""The Python face, on a real package."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize
from plug_ins import RECYCLING

import mxconv
from mxconv.decode import Options, TextModel
from mxconv.errors import ModelError, MxconvError


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    source = write_tiny_llama(folder / "source")
    (source / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    quantize(source, folder / "package", drafts=("prompt-lookup:max_ngram=2",))
    return folder / "package"


@pytest.fixture(scope="module")
def model(package: Path) -> Iterator[TextModel]:
    with mxconv.load(package, num_threads=1) as made:
        yield made


def test_an_answer_has_text_tokens_and_trace(model: TextModel) -> None:
    answer = model.generate("Once upon", max_new_tokens=20)
    tokenizer = model.loaded.tokenizer
    prompt = tokenizer.encode("Once upon")
    assert answer.text == tokenizer.decode([*prompt, *answer.token_ids])[len(tokenizer.decode(prompt)) :]
    assert len(answer.token_ids) == 20
    assert answer.generation.ending == "length"
    assert [level.name for level in answer.generation.trace.statistics] == ["target", "mxfp4", "prompt-lookup"]
    assert answer.generation.trace.num_rounds <= 20


def test_streamed_pieces_are_the_text(model: TextModel) -> None:
    whole = model.generate("Once upon", max_new_tokens=30, temperature=1.0, seed=5)
    answer = model.stream("Once upon", max_new_tokens=30, temperature=1.0, seed=5)
    seen = ""
    for piece in answer:
        assert piece
        seen += piece
        assert answer.text == seen
    assert (seen, answer.token_ids) == (whole.text, whole.token_ids)


def test_what_adaptive_levels_learn_stays_with_the_model(model: TextModel) -> None:
    assert model.hierarchy({"num_draft_tokens": "auto"}) is model.hierarchy({"num_draft_tokens": "auto", "seed": 1})
    assert model.hierarchy({}) is not model.hierarchy({"drafts": []})


def test_lengths_that_nobody_gives_are_what_pays(package: Path, model: TextModel) -> None:
    assert model.hierarchy({}).adaptive
    assert not model.hierarchy({"num_draft_tokens": [3]}).adaptive
    with mxconv.load(package, drafts=[RECYCLING], levels=["target"]) as other:
        assert other.hierarchy({}).adaptive
    with mxconv.load(package, drafts=[f"{RECYCLING},num_draft_tokens=3"], levels=["target"]) as other:
        assert not other.hierarchy({}).adaptive


def test_auto_looks_up_what_followed_before_unless_levels_were_chosen(model: TextModel, tmp_path: Path) -> None:
    def names(model: TextModel, options: Options) -> list[str]:
        return [level.name for level in model.hierarchy(options).levels]

    own = ["target", "mxfp4"]
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package")
    with mxconv.load(tmp_path / "package", num_threads=1) as plain:
        assert names(plain, {}) == names(plain, {"num_draft_tokens": "auto"}) == [*own, "prompt-lookup"]
        assert names(plain, {"num_draft_tokens": [3]}) == names(plain, {"drafts": ["mxfp4"]}) == own
        assert names(plain, {"drafts": ["prompt-lookup"]}) == ["target", "prompt-lookup"]  # what statistics name
        target, below = plain.hierarchy({}).paces  # the target leaves the look-up to its draft
        assert {draft.number for draft in target.drafts} == {0} and len(below.drafts) == 1
        looked_up = plain.generate("Once upon", max_new_tokens=30)
        assert looked_up.token_ids == plain.generate("Once upon", max_new_tokens=30, drafts=[]).token_ids
    with mxconv.load(tmp_path / "package", levels=own) as chosen:
        assert names(chosen, {}) == own
    assert names(model, {}) == [*own, "prompt-lookup"]  # the package's own, which has other n-grams
    assert model.hierarchy({}).levels[2].record.max_ngram == 2


def test_messages_go_through_the_chat_template(model: TextModel) -> None:
    messages = [{"role": "system", "content": "Be"}, {"role": "user", "content": "Hi"}]
    assert model.encode(messages) == model.loaded.tokenizer.encode("[system]Be[user]Hi", add_special_tokens=False)


def test_an_interrupt_keeps_what_there_is(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.generate("Once", max_new_tokens=40)
    forward, calls = type(model.loaded.levels[0].decoder).forward, []

    def interrupted(self: object, *arguments: object, **keywords: object) -> object:
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return forward(self, *arguments, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(type(model.loaded.levels[0].decoder), "forward", interrupted)
    answer = model.generate("Once", max_new_tokens=40)
    assert answer.generation.ending == "interrupted"
    assert 0 < len(answer.token_ids) < 40
    assert whole.token_ids[: len(answer.token_ids)] == answer.token_ids
    assert whole.text.startswith(answer.text)


def test_drafts_that_are_not_there_are_named(model: TextModel) -> None:
    with pytest.raises(ModelError, match="drafts target, bsfp; names out of mxfp4, prompt-lookup are required"):
        model.generate("a", drafts=["target", "bsfp"])


def test_values_out_of_range_are_refused(model: TextModel) -> None:
    for options, message in (
        ({"temperature": -1.0}, "temperature: -1.0; a finite number above 0 is required"),
        ({"top_p": 2.0, "temperature": 1.0}, "top_p: 2.0; a number from 0 to 1 is required"),
        ({"seed": 2**64, "temperature": 1.0}, f"seed: {2**64}; a number from 0 to {2**64 - 1} is required"),
        ({"max_new_tokens": 0}, "max_new_tokens: 0; at least 1 is required"),
        ({"stop_strings": [""]}, "stop strings: one is empty"),
    ):
        with pytest.raises(MxconvError, match=message):
            model.generate("a", **options)  # type: ignore[arg-type]
