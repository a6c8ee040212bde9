"""Tables read and written: golden vectors, the safetensors library as the oracle, and files that lie."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from mxconv.errors import CheckpointError
from mxconv.package import ngram_table
from mxconv.package.ngram_table import NgramTable, read_ngram_table, write_ngram_table

VECTORS = json.loads((Path(__file__).parents[2] / "formats" / "vectors" / "ngram.json").read_text())
CASES = {case["name"]: case for case in VECTORS["cases"]}
GOOD = bytes.fromhex(CASES["equal counts"]["file"])
METADATA = {
    "format": "mxconv-ngram",
    "version": "1",
    "tokenizer_sha256": VECTORS["tokenizer_sha256"],
    "vocab_size": "8",
    "num_tokens": "13",
    "min_count": "1",
    "num_pruned": "0",
}


def binary32(text: str) -> float:
    value: float = struct.unpack(">f", bytes.fromhex(text))[0]
    return value


def written(path: Path, change: Callable[[dict[str, Any], dict[str, str]], None]) -> Path:
    """The good file, changed and written by the safetensors library."""
    arrays, metadata = safetensors.numpy.load(GOOD), dict(METADATA)
    change(arrays, metadata)
    path.write_bytes(safetensors.numpy.save(arrays, metadata=metadata))
    return path


@pytest.mark.parametrize("name", CASES)
def test_the_golden_files_read_as_their_entries(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path = tmp_path / "table.safetensors"
    path.write_bytes(bytes.fromhex(case["file"]))
    table = read_ngram_table(path)
    assert (table.vocab_size, table.min_count, table.num_pruned) == (case["vocab_size"], case["min_count"], 0)
    assert table.num_tokens == sum(map(len, case["documents"]))
    assert table.tokenizer_sha256 == VECTORS["tokenizer_sha256"]
    entries = {key: {tuple(e["context"]): e for e in case["tables"][key]} for key in ("unigram", "bigram", "trigram")}
    seen = [*sorted({token for document in case["documents"] for token in document})[:8], case["vocab_size"]]
    for context in [(), *((b,) for b in seen), *((a, b) for a in seen for b in seen)]:
        longest = entries["trigram"].get(context) if len(context) == 2 else None
        entry = longest or entries["bigram"].get(context[-1:]) or entries["unigram"][()]
        if case["vocab_size"] in context:  # no token: no context is looked up
            entry = entries["unigram"][()]
        assert table.best([9, 9, *context] if len(context) == 2 else context) == (
            entry["token"],
            binary32(entry["probability"]),
        )


def test_what_is_written_is_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    source, path = tmp_path / "golden.safetensors", tmp_path / "table.safetensors"
    source.write_bytes(GOOD)
    write_ngram_table(read_ngram_table(source), path)
    expected = safetensors.numpy.load(GOOD)
    found = safetensors.numpy.load_file(path)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    with safetensors.safe_open(path, "numpy") as file:
        assert file.metadata() == METADATA
    assert same(read_ngram_table(path), read_ngram_table(source))


def same(ours: NgramTable, theirs: NgramTable) -> bool:
    return all(
        np.array_equal(getattr(getattr(ours, order), part), getattr(getattr(theirs, order), part))
        for order in ("trigrams", "bigrams")
        for part in ("contexts", "tokens", "probabilities")
    ) and (ours.unigram, ours.vocab_size) == (theirs.unigram, theirs.vocab_size)


def test_a_file_whose_arrays_lie_at_odd_bytes_is_searched_all_the_same(tmp_path: Path) -> None:
    length = int.from_bytes(GOOD[:8], "little")
    header = GOOD[8 : 8 + length].rstrip() + b" " * 9
    header += b" " * ((3 - len(header)) % 8)
    path = tmp_path / "odd.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + GOOD[8 + length :])
    (tmp_path / "even.safetensors").write_bytes(GOOD)
    table = read_ngram_table(path)
    assert table.trigrams.contexts.flags.aligned
    assert same(table, read_ngram_table(tmp_path / "even.safetensors"))
    entry = CASES["equal counts"]["tables"]["trigram"][0]
    assert table.best(entry["context"])[0] == entry["token"]


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_ngram_table(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    return text.removeprefix(f"{path}: ")


Change = Callable[[dict[str, Any], dict[str, str]], Any]


def meta(key: str, value: str | None) -> Change:
    """A change of the metadata; None takes the key away."""
    return lambda arrays, metadata: metadata.pop(key) if value is None else metadata.update({key: value})


def put(name: str, index: int, value: float) -> Change:
    def change(arrays: dict[str, Any], metadata: dict[str, str]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def replace(name: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    return lambda arrays, metadata: arrays.update({name: make(arrays[name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (meta("format", "gguf"), "format is 'gguf'; mxconv-ngram is required. Give a table"),
        (meta("format", None), "format is None; mxconv-ngram is required. Give a table"),
        (meta("version", "2"), "version is '2'; 1 is required. Give a table"),
        (meta("num_tokens", None), "metadata 'num_tokens' is missing; formats/ngram.md lists what is required."),
        (meta("smoothing", "none"), "metadata 'smoothing' is unknown; formats/ngram.md lists what is required."),
        (meta("tokenizer_sha256", "A" * 64), f"tokenizer_sha256 is '{'A' * 64}'; 64 hexadecimal digits are required."),
        (meta("vocab_size", "2097153"), "vocab_size is '2097153'; a number from 1 to 2097152 is required."),
        (meta("vocab_size", "0"), "vocab_size is '0'; a number from 1 to 2097152 is required."),
        (meta("vocab_size", "08"), "vocab_size is '08'; a number from 1 to 2097152 is required."),
        (meta("vocab_size", "\u0668"), "vocab_size is '\u0668'; a number from 1 to 2097152 is required."),
        (meta("min_count", "-1"), "min_count is '-1'; a number from 1 to 9223372036854775807 is required."),
        (meta("num_tokens", "9" * 5000), f"num_tokens is '{'9' * 76}...; a number from 1 to 9223372036854775807 is"),
        (lambda a, m: a.pop("bigram.tokens"), "array 'bigram.tokens' is missing; trigram.contexts, bigram.contexts, "),
        (lambda a, m: a.update(more=np.zeros(1, np.uint8)), "array 'more' is unknown; trigram.contexts, "),
        (replace("trigram.contexts", lambda a: a.astype(np.int64)), "array trigram.contexts is I64 [2]; U64 [2] is"),
        (replace("bigram.tokens", lambda a: a[:1]), "array bigram.tokens is U32 [1]; U32 [3] is required."),
        (replace("unigram.tokens", lambda a: a[:0]), "array unigram.tokens is U32 [0]; U32 [1] is required."),
        (replace("bigram.contexts", lambda a: a.reshape(1, 3)), "array bigram.contexts is U32 [1, 3]; U32 [3] is"),
        (put("unigram.tokens", 0, 8), "array unigram.tokens: element 0 is 8; a token below 8 is required."),
        (put("trigram.tokens", 1, 2**32 - 1), "array trigram.tokens: element 1 is 4294967295; a token below 8 is"),
        (put("bigram.contexts", 1, 8), "array bigram.contexts: element 1 is 8; tokens of a vocabulary of 8 is"),
        (put("trigram.contexts", 1, 8 << 32 | 1), f"array trigram.contexts: element 1 is {8 << 32 | 1}; tokens of a"),
        (put("trigram.contexts", 1, 7 << 32 | 8), f"array trigram.contexts: element 1 is {7 << 32 | 8}; tokens of a"),
        (put("bigram.contexts", 1, 0), "array bigram.contexts: element 1 is 0; more than the element before is"),
        (put("bigram.probabilities", 0, np.nan), "array bigram.probabilities: element 0 is nan; a probability above 0"),
        (put("bigram.probabilities", 1, 0), "array bigram.probabilities: element 1 is 0.0; a probability above 0 and"),
        (put("unigram.probabilities", 0, 1.5), "array unigram.probabilities: element 0 is 1.5; a probability above 0"),
    ],
)
def test_what_is_not_of_the_format_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    assert refusal(written(tmp_path / "bad.safetensors", change)).startswith(message)


def test_equal_contexts_are_refused_even_where_two_checked_parts_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram_table, "CHECKED_ENTRIES", 1)
    path = written(tmp_path / "bad.safetensors", put("bigram.contexts", 1, 1))
    assert refusal(path).startswith("array bigram.contexts: element 1 is 1; more than the element before is required.")
    path.write_bytes(GOOD)
    read_ngram_table(path)


def test_the_worked_example_of_the_format_is_a_vector() -> None:
    text = (Path(__file__).parents[2] / "formats" / "ngram.md").read_text()
    table = read_arrays(bytes.fromhex(CASES["one document"]["file"]))
    context = table["trigram.contexts"].tobytes().hex()
    assert f"trigram.contexts -> {context[:8]} {context[8:]}" in text
    assert f"tokens -> {table['trigram.tokens'].tobytes().hex()}" in text
    assert f"probabilities -> {table['trigram.probabilities'].tobytes().hex()}" in text


def read_arrays(content: bytes) -> dict[str, Any]:
    arrays: dict[str, Any] = safetensors.numpy.load(content)
    return arrays
