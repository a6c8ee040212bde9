"""Tokens of a folder: equal or not, and how many."""

import json
from pathlib import Path
from typing import Any

import pytest

from mxconv.checkpoint.vocabulary import Vocabulary
from mxconv.errors import CheckpointError

TOKENIZER: dict[str, Any] = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 7}, "merges": []},
    "added_tokens": [{"id": 9, "content": "<s>"}],
    "normalizer": None,
    "pre_tokenizer": None,
}


def folder(path: Path, vocab_size: object = 16, **changes: Any) -> Path:
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER | changes))
    (path / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    return path


def test_a_vocabulary_ends_behind_its_largest_id(tmp_path: Path) -> None:
    found = Vocabulary.of_folder(folder(tmp_path / "a"))
    assert (found.num_tokens, found.vocab_size) == (10, 16)
    unigram = {"type": "Unigram", "vocab": [["a", 0.0]] * 12}
    assert Vocabulary.of_folder(folder(tmp_path / "b", model=unigram)).num_tokens == 12
    (tmp_path / "empty").mkdir()
    assert Vocabulary.of_folder(tmp_path / "empty") == Vocabulary(None, 0, None)


def test_padding_and_settings_do_not_count_but_every_token_does(tmp_path: Path) -> None:
    """As with 151,936 and 152,064 rows for the same 151,665 tokens."""
    one = Vocabulary.of_folder(folder(tmp_path / "a", 151_936, padding={"length": 3}))
    other = Vocabulary.of_folder(folder(tmp_path / "b", 152_064, truncation={"max_length": 5}))
    assert one.equals(other)
    assert (one.vocab_size, other.vocab_size) == (151_936, 152_064)
    for number, changes in enumerate(
        (
            {"added_tokens": [{"id": 9, "content": "</s>"}]},
            {"model": {"type": "BPE", "vocab": {"a": 1, "b": 0, "c": 7}, "merges": []}},
            {"pre_tokenizer": {"type": "Whitespace"}},
        )
    ):
        assert not one.equals(Vocabulary.of_folder(folder(tmp_path / str(number), **changes)))


@pytest.mark.parametrize("bad", [-1, 2.5, "3", None, True])
def test_an_id_that_is_none_is_refused(tmp_path: Path, bad: object) -> None:
    broken = folder(tmp_path / "a", model={"type": "BPE", "vocab": {"a": bad}})
    with pytest.raises(CheckpointError, match=r"tokenizer.json: token id .*; a whole number is required"):
        Vocabulary.of_folder(broken)
