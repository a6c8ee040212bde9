"""tokenizer.model alone: the tokens that transformers and SentencePiece give, or a refusal that says why."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import quantize
from sentence_pieces import NORMAL, UNUSED, USER_DEFINED, llama_pieces, model_bytes, write_gemma, write_llama
from transformers import AutoTokenizer

from mxconv.checkpoint.tokenizer_files import MAX_FILE_BYTES, read_tokenizer_json
from mxconv.errors import CheckpointError, ModelError
from mxconv.text.tokenizer import Tokenizer

sentencepiece = pytest.importorskip("sentencepiece")
TEXTS = ("the end", " in  the on  and", "日本語 é\n\n\n\tan ananas", "<s> and </s>", "", "1234 ...")


@pytest.mark.parametrize("write", [write_llama, write_gemma])
@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True, "bos_token": "<s>"}, {"add_eos_token": True}])
def test_texts_become_the_tokens_of_transformers(tmp_path: Path, write: Any, settings: dict[str, Any]) -> None:
    path = write(tmp_path) / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    ours, theirs = Tokenizer.from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert (ids := ours.encode(text)) == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("write", [write_llama, write_gemma])
def test_texts_become_the_tokens_of_sentencepiece(tmp_path: Path, write: Any) -> None:
    ours = Tokenizer.from_folder(write(tmp_path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in TEXTS:  # SentencePiece takes control pieces for text, and puts one more space before a space
        if "<s>" not in text and not text.startswith(" "):
            assert ours.encode(text, add_special_tokens=False) == theirs.encode(text), text


def test_a_package_gets_a_tokenizer_file(tmp_path: Path) -> None:
    folder = write_llama(write_tiny_llama(tmp_path / "model", vocab_size=400))
    (folder / "tokenizer.json").unlink(missing_ok=True)
    assert quantize(folder, tmp_path / "package").tokenizer is not None
    assert {"tokenizer.json", "tokenizer.model"} <= {path.name for path in (tmp_path / "package").iterdir()}
    again = Tokenizer.from_folder(tmp_path / "package")
    assert again.encode("the end") == Tokenizer.from_folder(folder).encode("the end")


def test_without_the_extra_a_model_is_quantized_and_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_llama(write_tiny_llama(tmp_path / "model", vocab_size=400))
    (folder / "tokenizer.json").unlink(missing_ok=True)
    monkeypatch.setitem(sys.modules, "sentencepiece.sentencepiece_model_pb2", None)
    assert quantize(folder, tmp_path / "package").tokenizer is None
    message = r"tokenizer\.model: a file of SentencePiece, and sentencepiece\S* is not installed; tokenizer\.json or "
    message += r"the extra `sentencepiece` is required\. Run: pip install '\.\[sentencepiece\]' .* Or: Write it with tr"
    with pytest.raises(CheckpointError, match=message):
        Tokenizer.from_folder(tmp_path / "package")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": {3: 1}}, "its kind is not BPE; a vocabulary of merges is required"),
        ({"normalizer": {2: b"table"}}, "a table of characters; text as it is is required"),
        ({"normalizer": {4: 1}}, "remove_extra_whitespaces; whitespace as it is is required"),
        ({"normalizer": {5: 0}}, "no escape_whitespaces; spaces written as ▁ is required"),
        ({"trainer": {24: 1}}, "treat_whitespace_as_suffix; whitespace before words is required"),
        ({"pieces": [*llama_pieces(), ("zz", 0.0, UNUSED)]}, "pieces that are unused; a use of each piece"),
        ({"pieces": llama_pieces()[:200]}, "byte_fallback without a piece of each byte; 256 of them"),
        ({"pieces": [*llama_pieces(), ("aa", -1e9, NORMAL)]}, "a piece that occurs twice; one of a text is required"),
        ({"pieces": [*llama_pieces(), ("", -1e9, NORMAL)]}, "a piece without text, or of a long one; 1 to 1024"),
        ({"pieces": [*llama_pieces(), ("z" * 1025, -1e9, NORMAL)]}, "a piece without text, or of a long one"),
        ({"pieces": [*llama_pieces(), ("zz", float("nan"), NORMAL)]}, "scores that rise; those of merges in their"),
        ({"pieces": [*llama_pieces(), ("zz", 1.0, NORMAL)]}, "scores that rise; those of merges in their order is"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_cannot_be_exact_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = write_llama(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=re.escape(f"{folder / 'tokenizer.model'}: {message}")) as error:
        read_tokenizer_json(folder)
    assert "Take tokenizer.json from the model's source" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\x09cut off", r"no message of SentencePiece \(.*\); a whole one is required\. Copy the file anew"),
        (b"IQ== 0\nIg== 1\n", r"no pieces; a vocabulary of SentencePiece is required"),  # tiktoken's list
        (b"", r"no pieces; a vocabulary of SentencePiece is required"),
        (bytes(MAX_FILE_BYTES + 1), r"67,108,865 bytes; at most 67,108,864 are read"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"tokenizer\.model: {message}"):
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
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    try:
        read_tokenizer_json(folder)
    except CheckpointError as error:
        assert str(error).startswith(str(folder))
