"""Whether two models speak the same tokens, from the files of their folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, trainers

from mxconv.checkpoint.vocabulary import Vocabulary
from mxconv.errors import CheckpointError

ENTRIES = {"<unk>": 0, "a": 1, "b": 2}


def folder(path: Path, vocab_size: Any = 3, entries: Any = None, **changes: Any) -> Path:
    """A model folder as far as its tokens go."""
    path.mkdir()
    Tokenizer(models.WordLevel(ENTRIES, unk_token="<unk>")).save(str(path / "tokenizer.json"))
    members = json.loads((path / "tokenizer.json").read_text())
    if entries is not None:
        members["model"]["vocab"] = entries
    (path / "tokenizer.json").write_text(json.dumps(members | changes))
    (path / "config.json").write_text(json.dumps({"vocab_size": vocab_size}))
    return path


def test_matrices_padded_to_different_sizes_hold_the_same_tokens(tmp_path: Path) -> None:
    """Qwen2.5: 151,936 rows in its small models, 152,064 in its large ones, 151,665 tokens in both."""
    small = Vocabulary.of_folder(folder(tmp_path / "small", 151_936))
    large = Vocabulary.of_folder(folder(tmp_path / "large", 152_064))
    assert small.equals(large) and large.equals(small)
    assert (small.vocab_size, large.vocab_size, small.num_tokens) == (151_936, 152_064, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"entries": ENTRIES | {"c": 3}},
        {"entries": {"<unk>": 0, "b": 1, "a": 2}},
        {"added_tokens": [{"id": 3, "content": "<s>"}]},
        {"normalizer": {"type": "Lowercase"}},
        {"pre_tokenizer": {"type": "Whitespace"}},
    ],
    ids=str,
)
def test_what_changes_the_text_of_an_id_makes_another_vocabulary(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours, theirs = folder(tmp_path / "ours"), folder(tmp_path / "theirs", **changes)
    assert not Vocabulary.of_folder(ours).equals(Vocabulary.of_folder(theirs))


def test_padding_truncation_and_the_order_of_keys_change_no_vocabulary(tmp_path: Path) -> None:
    ours = folder(tmp_path / "ours")
    theirs = folder(
        tmp_path / "theirs",
        entries=dict(reversed(ENTRIES.items())),
        padding={"strategy": "BatchLongest"},
        truncation={"max_length": 5},
        post_processor=None,
    )
    assert Vocabulary.of_folder(ours).equals(Vocabulary.of_folder(theirs))


def test_the_number_of_tokens_is_one_more_than_the_largest_id(tmp_path: Path) -> None:
    assert Vocabulary.of_folder(folder(tmp_path / "gap", entries={"a": 0, "b": 9})).num_tokens == 10
    added = folder(tmp_path / "added", added_tokens=[{"id": 40, "content": "<s>"}])
    assert Vocabulary.of_folder(added).num_tokens == 41
    assert Vocabulary.of_folder(folder(tmp_path / "none", entries={})).num_tokens == 0


def test_a_unigram_tokenizer_numbers_its_entries_by_place(tmp_path: Path) -> None:
    root = folder(tmp_path / "unigram")
    backend = Tokenizer(models.Unigram())
    backend.train_from_iterator(["abc abd"], trainers.UnigramTrainer(vocab_size=9, special_tokens=["<unk>"]))
    backend.save(str(root / "tokenizer.json"))
    assert Vocabulary.of_folder(root).num_tokens == backend.get_vocab_size()


def test_a_folder_without_tokenizer_or_config_has_no_tokens_and_no_size(tmp_path: Path) -> None:
    assert Vocabulary.of_folder(tmp_path) == Vocabulary(None, 0, None)
    for size in ("3", None, 3.0, True):
        (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size}))
        assert Vocabulary.of_folder(tmp_path).vocab_size is None


@pytest.mark.parametrize("value", ["1", None, 1.5, -1, True])
def test_a_token_id_that_is_no_number_is_refused(tmp_path: Path, value: Any) -> None:
    root = folder(tmp_path / "m", entries={"a": 0, "b": value})
    with pytest.raises(CheckpointError) as caught:
        Vocabulary.of_folder(root)
    assert str(caught.value) == (
        f"{root}/tokenizer.json: token id {value!r}; a whole number is required. Copy the file anew."
    )
    added = folder(tmp_path / "added", added_tokens=[{"id": value}])
    with pytest.raises(CheckpointError, match=r"added/tokenizer\.json: token id"):
        Vocabulary.of_folder(added)


@pytest.mark.parametrize(
    "changes", [{"model": 5}, {"model": {"vocab": 5}}, {"added_tokens": 7}, {"added_tokens": [3, "x"]}]
)
def test_parts_of_other_types_hold_no_tokens(tmp_path: Path, changes: dict[str, Any]) -> None:
    """What is wrong with them the tokenizer's own loader says."""
    root = folder(tmp_path / "m", **changes)
    assert Vocabulary.of_folder(root).num_tokens == (0 if "model" in changes else 3)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, name: str) -> None:
    root = folder(tmp_path / "m")
    (root / name).write_text("[1")
    with pytest.raises(CheckpointError, match=f"m/{name}: no valid JSON in UTF-8"):
        Vocabulary.of_folder(root)
