"""N-gram tables, counted with dictionaries, and one of them as a file."""

import json
import struct
from typing import Any

SHA256 = "0123456789abcdef" * 4

# documents, vocabulary, least count
CASES = {
    "one document": ([[1, 2, 3, 1, 2, 4, 1, 2, 3]], 6, 2),
    "everything counts": ([[1, 2, 3, 1, 2, 4, 1, 2, 3]], 6, 1),
    "n-grams do not cross documents": ([[0, 1], [2], [], [0, 1, 2], [1, 2, 0, 1]], 3, 1),
    "equal counts": ([[5, 3], [5, 4], [5, 2, 7], [5, 2, 6], [1, 5, 3]], 8, 1),
    "the largest ids": ([[2097151, 2097150, 2097151, 2097150, 2097151]], 2097152, 1),
    "no pairs": ([[1], [1], [0]], 2, 1),
}


def ngram() -> dict[str, Any]:
    cases: list[dict[str, Any]] = []
    for name, (documents, vocab_size, min_count) in CASES.items():
        tables = count(documents, min_count)
        cases.append(
            {
                "name": name,
                "documents": documents,
                "vocab_size": vocab_size,
                "min_count": min_count,
                "tables": {
                    key: [
                        {"context": list(context), "token": token, "probability": binary32(probability)}
                        for context, (token, probability) in sorted(table.items())
                    ]
                    for key, table in tables.items()
                },
                "file": file_of(tables, sum(map(len, documents)), vocab_size, min_count).hex(),
            }
        )
    return {"tokenizer_sha256": SHA256, "cases": cases}


def binary32(value: float) -> str:
    return f"{struct.unpack('<I', struct.pack('<f', value))[0]:08x}"


def count(documents: list[list[int]], min_count: int) -> dict[str, dict[tuple[int, ...], tuple[int, float]]]:
    """Best next token and its probability, by context, for contexts of 0, 1 and 2 tokens."""
    followers: dict[tuple[int, ...], dict[int, int]] = {}
    for tokens in documents:
        for length in (0, 1, 2):
            for i in range(length, len(tokens)):
                counts = followers.setdefault(tuple(tokens[i - length : i]), {})
                counts[tokens[i]] = counts.get(tokens[i], 0) + 1

    def probability(context: tuple[int, ...], token: int) -> float:
        counts = followers.get(context)
        if not context:
            return counts[token] / sum(counts.values())
        shorter = probability(context[1:], token)
        if counts is None:
            return shorter
        return (counts.get(token, 0) + len(counts) * shorter) / (sum(counts.values()) + len(counts))

    tables: dict[str, dict[tuple[int, ...], tuple[int, float]]] = {"unigram": {}, "bigram": {}, "trigram": {}}
    for context, counts in followers.items():
        best = max(sorted(counts), key=lambda token: probability(context, token))
        if not context or counts[best] >= min_count:
            tables[("unigram", "bigram", "trigram")[len(context)]][context] = best, probability(context, best)
    return tables


def file_of(
    tables: dict[str, dict[tuple[int, ...], tuple[int, float]]], num_tokens: int, vocab_size: int, min_count: int
) -> bytes:
    """The safetensors file, by hand."""
    arrays: list[tuple[str, str, bytes]] = []
    for key in ("trigram", "bigram", "unigram"):
        entries = sorted(tables[key].items())
        if key == "trigram":
            contexts = b"".join(struct.pack("<II", b, a) for (a, b), _ in entries)
            arrays.append(("trigram.contexts", "U64", contexts))
        if key == "bigram":
            arrays.append(("bigram.contexts", "U32", b"".join(struct.pack("<I", b) for (b,), _ in entries)))
        arrays.append((f"{key}.tokens", "U32", b"".join(struct.pack("<I", token) for _, (token, _) in entries)))
        arrays.append((f"{key}.probabilities", "F32", b"".join(struct.pack("<f", p) for _, (_, p) in entries)))
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "mxconv-ngram",
            "version": "1",
            "tokenizer_sha256": SHA256,
            "vocab_size": str(vocab_size),
            "num_tokens": str(num_tokens),
            "min_count": str(min_count),
            "num_pruned": "0",
        }
    }
    end = 0
    for name, dtype, content in arrays:
        length = len(content) // (8 if dtype == "U64" else 4)
        header[name] = {"dtype": dtype, "shape": [length], "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(content for _, _, content in arrays)
