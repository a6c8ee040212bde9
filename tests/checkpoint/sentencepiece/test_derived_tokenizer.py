"""tokenizer.model alone: the tokens that transformers gives, or a refusal that says why."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import quantize
from sentence_pieces import (
    NORMAL,
    UNUSED,
    USER_DEFINED,
    Entry,
    as_transformers_sees,
    gemma_pieces,
    llama_pieces,
    model_bytes,
    write_gemma,
    write_llama,
)
from tiny_tokenizers import texts
from transformers import AutoTokenizer

from mxconv.checkpoint.sentencepiece.derived_tokenizer import derive_tokenizer
from mxconv.errors import CheckpointError, ModelError
from mxconv.text.tokenizer import Tokenizer

LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
GEMMA = {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True}
NAMED = {"content": "<end_of_turn>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
# model_type, tokenizer_config.json: by these transformers chooses how a tokenizer.model is read
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("llama", LLAMA),
    "Llama, legacy": ("llama", LLAMA | {"legacy": True, "add_eos_token": True}),
    "Llama, no prefix": ("llama", LLAMA | {"add_prefix_space": False, "add_bos_token": False}),
    "Llama, one more": ("llama", LLAMA | {"added_tokens_decoder": {"{end}": NAMED}}),
    "Gemma": ("gemma", GEMMA),
    "no class": ("phi3", {"add_eos_token": True}),
}
WHITESPACE = st.lists(st.sampled_from(["  ", " ", "\n", "\n\n\n", "\t", "a", " the", "aaaa", "nana", "<s>", "日本語"]))
PIECES = st.sampled_from(["<start_of_turn>", "</s>", "<eos>", "<end_of_turn>", " of  and", "123", "é"])
TEXTS = st.one_of(texts(), WHITESPACE.map("".join), st.lists(PIECES | texts(), max_size=4).map("".join))


@pytest.fixture(scope="module", params=SETTINGS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """Ours and transformers', of one folder."""
    model_type, config = SETTINGS[request.param]
    folder = tmp_path_factory.mktemp("model")
    is_llama = model_type == "llama"
    pieces, ids = (llama_pieces(), (0, 1, 2)) if is_llama else (gemma_pieces(), (3, 2, 1))
    if "tokenizer_class" not in config:  # with defined pieces transformers 5.24 takes the text "<0x41>" for a byte
        pieces = [entry for entry in pieces if entry[2] != USER_DEFINED]
    (write_llama if is_llama else write_gemma)(folder, pieces)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    text = json.dumps(config).replace("{end}", str(len(pieces)))
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.MonkeyPatch.context() as monkeypatch:
        as_transformers_sees(pieces, ids, is_llama, monkeypatch)
        return Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)


@settings(max_examples=30, deadline=None)
@given(text=TEXTS)
def test_texts_become_the_tokens_of_transformers(pair: tuple[Tokenizer, Any], text: str) -> None:
    ours, theirs = pair
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_merges_follow_the_scores_where_they_contradict_the_ids(tmp_path: Path) -> None:
    """As SentencePiece joins. transformers takes ids for ranks, which is the same in files as training leaves them."""
    head: list[Entry] = [("<unk>", 0.0, 2), ("a", -9.0, NORMAL), ("b", -9.0, NORMAL), ("▁", -9.0, NORMAL)]
    for scores, tokens in (((-1.0, -2.0), ["ab", "a"]), ((-2.0, -1.0), ["a", "ba"])):
        words: list[Entry] = [("ab", scores[0], NORMAL), ("ba", scores[1], NORMAL)]
        folder = write_gemma(tmp_path, [*head, *words], ids=(0, -1, -1), trainer={35: 0})
        backend = Tokenizer.from_folder(folder)
        assert [backend.name_of(token) for token in backend.encode("aba")] == tokens


def test_a_named_piece_is_found_in_a_text(tmp_path: Path) -> None:
    pieces = gemma_pieces()
    place = [text for text, *_ in pieces].index("<unused0>")
    folder = write_gemma(tmp_path, pieces)
    (folder / "tokenizer_config.json").write_text(json.dumps(GEMMA | {"added_tokens_decoder": {str(place): NAMED}}))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("<end_of_turn>", add_special_tokens=False) == [place]
    assert tokenizer.is_silent(place)
    (folder / "added_tokens.json").write_text(json.dumps({"<more>": len(pieces)}))
    assert Tokenizer.from_folder(folder).encode("<more>", add_special_tokens=False) == [len(pieces)]


def test_spaces_that_a_user_defined_need_a_class_that_says_how_they_are_cut(tmp_path: Path) -> None:
    folder = write_gemma(tmp_path)
    derive_tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    message = (
        r"tokenizer_config\.json: no tokenizer_class, and tokenizer\.model has '▁▁', which a user defined; a class is"
    )
    with pytest.raises(CheckpointError, match=message):
        derive_tokenizer(folder)


def test_a_package_gets_a_tokenizer_file(tmp_path: Path) -> None:
    folder = write_llama(write_tiny_llama(tmp_path / "model", vocab_size=400))
    (folder / "tokenizer.json").unlink(missing_ok=True)
    manifest = quantize(folder, tmp_path / "package")
    assert manifest.tokenizer is not None
    names = {path.name for path in (tmp_path / "package").iterdir()}
    assert {"tokenizer.json", "tokenizer.model"} <= names
    again = Tokenizer.from_folder(tmp_path / "package")
    assert again.encode("the end") == Tokenizer.from_folder(folder).encode("the end")


def test_a_model_whose_tokenizer_is_not_read_is_quantized(tmp_path: Path) -> None:
    folder = write_llama(write_tiny_llama(tmp_path / "model"), trainer={3: 1})
    (folder / "tokenizer.json").unlink(missing_ok=True)
    assert quantize(folder, tmp_path / "package").tokenizer is None
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: a SentencePiece model of the kind unigram; BPE is"):
        Tokenizer.from_folder(tmp_path / "package")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": {3: 1}}, "a SentencePiece model of the kind unigram; BPE is required"),
        ({"normalizer": {2: b"table"}}, "its normalizer has a table of characters; text as it is is required"),
        ({"normalizer": {4: 1}}, "remove_extra_whitespaces is true; whitespace as it is is required"),
        ({"normalizer": {5: 0}}, "escape_whitespaces is false; spaces written as ▁ is required"),
        ({"trainer": {24: 1}}, "treat_whitespace_as_suffix is true; whitespace before words is required"),
        ({"pieces": [*llama_pieces(), ("zz", 0.0, UNUSED)]}, "some of its pieces are unused"),
        ({"pieces": llama_pieces()[:200]}, "byte_fallback is true and bytes lack pieces"),
        ({"pieces": [*llama_pieces(), ("aa", 0.0, NORMAL)]}, "piece 'aa' occurs twice; texts must be unique"),
        ({"pieces": [*llama_pieces(), ("", 0.0, NORMAL)]}, "is b'' with score 0.0; 1 to 1024 characters of UTF-8"),
        ({"pieces": [*llama_pieces(), ("zz", float("nan"), NORMAL)]}, "with score nan; 1 to 1024 characters"),
        ({"pieces": [*llama_pieces(), ("zz", 0.0, 9)]}, "'zz', is of type 9; one of 1 to 6 is required"),
        ({"ids": (0, 1, 4000)}, "eos_id is 4000, of"),
        ({"trainer": {3: b"x"}}, "model_type is of another wire type than it has"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_exact_is_refused_with_the_way_out(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = write_llama(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=re.escape(message)) as error:
        derive_tokenizer(folder)
    assert str(error.value).startswith(str(tmp_path))
    assert "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)" in str(error.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"add_bos_token": 1}, "add_bos_token is '1'; true or false is required"),
        ({"add_bos_token": True, "bos_token": "<x>"}, "bos_token is '<x>'; with add_bos_token a token of"),
        ({"added_tokens_decoder": []}, None),
        ({"added_tokens_decoder": [1]}, "added_tokens_decoder is no object; tokens by id are required"),
        ({"added_tokens_decoder": {"x": NAMED}}, "'x' has id 'x'; a whole number is required"),
        ({"added_tokens_decoder": {"400": {}}}, "has {} under 400; content is required"),
        ({"added_tokens_decoder": {"4000": NAMED}}, "'<end_of_turn>' has id 4000, and"),
        ({"added_tokens_decoder": {"5": NAMED | {"content": "</s>"}}}, "'</s>' has id 5; in tokenizer.model it has 2"),
    ],
)
def test_settings_that_contradict_the_file_are_refused(
    tmp_path: Path, config: dict[str, Any], message: str | None
) -> None:
    folder = write_llama(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    if message is None:
        derive_tokenizer(folder)
        return
    with pytest.raises(CheckpointError, match=re.escape(message)):
        derive_tokenizer(folder)


def test_a_list_of_tiktoken_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"IQ== 0\nIg== 1\n")
    with pytest.raises(CheckpointError, match=r"tokenizer\.model: a list of tiktoken, which lacks the rule that cuts"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize(("name", "content"), [("tekken.json", b"{}"), ("vocab.json", b"{}")])
def test_other_tokenizers_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelError, match=rf"no such file, only {name}; a fast tokenizer .* Or: Write it with transf"):
        Tokenizer.from_folder(tmp_path)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_damage_raises_our_error_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = model_bytes([("<unk>", 0.0, 2), ("a", -1.0, NORMAL), ("b", -2.0, USER_DEFINED)], {3: 2}, {4: 0})
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    folder = tmp_path_factory.getbasetemp() / "damaged"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(damaged)
    try:
        derive_tokenizer(folder)
    except CheckpointError as error:
        assert str(error).startswith(str(folder))
