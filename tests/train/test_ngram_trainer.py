"""Training a table of n-grams: golden vectors, the dictionaries that made them, and counts in bounded memory."""

import importlib.util
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from checkpoints import write_tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from mxconv.checkpoint.regular_file import sha256_file
from mxconv.errors import MxconvError
from mxconv.package.ngram_table import NgramTable, write_ngram_table
from mxconv.text import texts
from mxconv.train.ngram_trainer import NgramCounts, NgramTrainer, train_ngram

VECTORS = Path(__file__).parents[2] / "formats" / "vectors"
GOLDEN = json.loads((VECTORS / "ngram.json").read_text())


def load_generator() -> Any:
    """formats/vectors/ngram.py, which imports nothing of mxconv."""
    spec = importlib.util.spec_from_file_location("ngram_vectors", VECTORS / "ngram.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REFERENCE = load_generator()
Tables = dict[str, dict[tuple[int, ...], tuple[int, float]]]


def train(
    documents: list[list[int]], vocab_size: int, min_count: int, max_entries: int = 1000, max_held: int = 1000
) -> NgramTable:
    trainer = NgramTrainer(vocab_size, max_held)
    for tokens in documents:
        trainer.add(tokens, begins_document=True)
    return trainer.table(GOLDEN["tokenizer_sha256"], min_count, max_entries)


def tables_of(table: NgramTable) -> Tables:
    """As the generator gives them."""
    two, one = table.trigrams, table.bigrams
    pairs = [(key >> 32, key & 0xFFFFFFFF) for key in two.contexts.tolist()]
    return {
        "unigram": {(): table.unigram},
        "bigram": dict(
            zip(
                [(key,) for key in one.contexts.tolist()],
                zip(one.tokens.tolist(), one.probabilities.tolist(), strict=True),
                strict=True,
            )
        ),
        "trigram": dict(zip(pairs, zip(two.tokens.tolist(), two.probabilities.tolist(), strict=True), strict=True)),
    }


def rounded(tables: Tables) -> Tables:
    """Probabilities as binary32."""
    return {
        order: {c: (token, struct.unpack("f", struct.pack("f", p))[0]) for c, (token, p) in table.items()}
        for order, table in tables.items()
    }


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["name"])
def test_the_golden_tables_are_trained_and_written_bit_for_bit(case: dict[str, Any], tmp_path: Path) -> None:
    table = train(case["documents"], case["vocab_size"], case["min_count"])
    write_ngram_table(table, tmp_path / "table.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "table.safetensors")
    expected = safetensors.numpy.load(bytes.fromhex(case["file"]))
    assert {name: (a.dtype, a.tobytes()) for name, a in found.items()} == {
        name: (a.dtype, a.tobytes()) for name, a in expected.items()
    }
    assert table.vocab_size == case["vocab_size"]
    assert table.num_tokens == sum(map(len, case["documents"]))


documents = st.lists(st.lists(st.integers(0, 4), max_size=30), min_size=1, max_size=6).filter(any)


@settings(max_examples=25)
@given(documents, st.integers(1, 3))
def test_tables_are_those_of_dictionaries(docs: list[list[int]], min_count: int) -> None:
    assert tables_of(train(docs, 5, min_count)) == rounded(REFERENCE.count(docs, min_count))


@settings(max_examples=25)
@given(documents, st.data())
def test_pieces_of_a_document_count_as_the_whole(docs: list[list[int]], data: st.DataObject) -> None:
    trainer = NgramTrainer(5, 1000)
    for tokens in docs:
        cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=5).map(sorted))
        for i, (begin, end) in enumerate(pairwise([0, *cuts, len(tokens)])):
            trainer.add(tokens[begin:end], begins_document=i == 0)
    assert tables_of(trainer.table("0" * 64, 1, 1000)) == rounded(REFERENCE.count(docs, 1))


@settings(max_examples=25)
@given(documents, st.integers(1, 12))
def test_the_most_frequent_entries_are_kept(docs: list[list[int]], max_entries: int) -> None:
    """Of equal counts bigrams first, then the least contexts; those that are kept are what they were."""
    everything = rounded(REFERENCE.count(docs, 1))
    followed = {
        context: sum(
            document[i : i + len(context) + 1] == [*context, token]
            for document in docs
            for i in range(len(document) - len(context))
        )
        for order in ("bigram", "trigram")
        for context, (token, _) in everything[order].items()
    }
    best = sorted(followed, key=lambda context: (-followed[context], len(context), context))[:max_entries]
    found = tables_of(train(docs, 5, 1, max_entries))
    assert found["bigram"].keys() | found["trigram"].keys() == set(best)
    for order, table in found.items():
        assert table == {context: everything[order][context] for context in table}


@settings(max_examples=25)
@given(documents, st.integers(1, 8))
def test_a_table_of_counts_that_were_pruned_holds_probabilities(docs: list[list[int]], max_held: int) -> None:
    found = tables_of(train(docs, 5, 1, max_held=max_held))
    assert len(found["bigram"]) <= max_held and len(found["trigram"]) <= max_held
    for entries in found.values():
        assert all(0 < probability <= 1 for _, probability in entries.values())


def test_pairs_that_were_dropped_have_the_probability_of_what_is_left() -> None:
    """P(w | b) by the rule: of a pair that is counted, of one that is not, and after a token that nothing follows."""
    left = NgramCounts(max_held=4)
    left.add([1 << 21 | 2] * 3 + [1 << 21 | 3])
    left.best(lambda _, token: 0.5)
    cases = {(1, 2, 0.3): (3 + 2 * 0.3) / (4 + 2), (1, 0, 0.1): (0 + 2 * 0.1) / (4 + 2), (0, 3, 0.4): 0.4}
    assert {case: left.probability(*case) for case in cases} == cases


def test_ids_above_the_vocabulary_raise_it() -> None:
    """A tokenizer counts its tokens; where ids have gaps, the largest is above that."""
    assert train([[1, 7, 1]], 3, 1).vocab_size == 8


def test_a_vocabulary_that_three_tokens_do_not_fit_is_refused() -> None:
    with pytest.raises(MxconvError, match="tokenizer: a vocabulary of 2,097,153; at most 2,097,152 is required"):
        train([[2**21]], 3, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    write_tiny_tokenizer(tmp_path / "model" / "tokenizer.json", 98)
    return tmp_path / "model"


def encode(text: str) -> list[int]:
    return [3 + ord(character) - 32 for character in text]


def test_files_are_tokenized_counted_and_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "PIECE_BYTES", 7)
    plain, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    plain.write_text("the cat sat on the mat, the cat ran")
    lines.write_text('{"text": "the cat"}\n{"prompt": "cat"}\n')
    calls: list[tuple[str, int, int]] = []
    table = train_ngram([plain, lines], folder, 1, 1000, lambda *call: calls.append(call))
    docs = [encode(text) for text in (plain.read_text(), "the cat", "cat")]
    assert tables_of(table) == rounded(REFERENCE.count(docs, 1))
    assert table.tokenizer_sha256 == sha256_file(folder / "tokenizer.json")
    assert (table.vocab_size, table.num_tokens) == (98, sum(map(len, docs)))
    total = plain.stat().st_size + lines.stat().st_size
    assert calls[-1] == ("count", total, total)
    assert [done for _, done, _ in calls] == sorted(done for _, done, _ in calls)
    assert {call[2] for call in calls} == {total}


def test_numbers_that_keep_nothing_and_texts_without_a_token_are_refused(folder: Path, tmp_path: Path) -> None:
    for options in ({"min_count": 0}, {"max_entries": 0}):
        with pytest.raises(MxconvError, match=r"min_count \d, max_entries \d+; each must be at least 1. Choose others"):
            train_ngram([folder / "tokenizer.json"], folder, **options)
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    with pytest.raises(MxconvError, match=r"empty\.txt: 0 tokens; at least one is required\. Give texts that hold"):
        train_ngram([empty], folder)


def test_the_rarest_are_dropped() -> None:
    counts = NgramCounts(max_held=4)
    counts.add([1] * 5 + [2] * 4 + [3] * 3 + [4, 4, 5, 6])
    ((_, token, _, count),) = counts.best(lambda *_: 0.0)
    assert (token, count, counts.num_pruned) == (1, 5, 4)
    assert [counts.probability(0, token, 0.0) for token in (1, 2, 3)] == [5 / 11, 4 / 11, 0]
