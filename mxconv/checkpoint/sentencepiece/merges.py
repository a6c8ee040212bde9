"""The merges of a BPE whose tokens have scores.

SentencePiece, and llama.cpp for vocabularies of the kind `llama`, join the two neighbours whose union has the best
score. A list of merges says the same: every way to split a token into two others, the best score first.
"""

from collections.abc import Mapping, Sequence


def merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """Every split of a token into two, best score first; of equal scores the lower id, of one token the shorter left.

    Args:
        ids: of the tokens that merging may make, and that it starts from.
        scores: by id.

    Source:
        `generate_merges` of transformers 5.23, which takes ids for ranks; there too the shorter left part comes first.
    """
    found = []
    for text, token_id in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((-scores[token_id], token_id, cut, [left, right]))
    return [pair for *_, pair in sorted(found)]
