"""Whether speculation changes a token, or a bit of the logits that chose it."""

import hashlib
from collections.abc import Collection, Iterable

from mxconv.arrays import F32
from mxconv.checkpoint.manifest import DecodeRecord
from mxconv.model.loader import LoadedPackage
from mxconv.progress import Progress, silent
from mxconv.speculative.hierarchy import Hierarchy
from mxconv.speculative.selection import GREEDY, Selection


def verify_decoding(
    loaded: LoadedPackage,
    hierarchy: Hierarchy,
    prompts: Iterable[str],
    max_new_tokens: int,
    selection: Selection = GREEDY,
    progress: Progress = silent,
) -> DecodeRecord:
    """Decode every prompt plainly and with drafts; compare tokens, and logits of every emitted position.

    What is decoded is the first of the levels, and the record names it.

    Args:
        loaded: the package.
        hierarchy: of its levels.
        prompts: texts.
        max_new_tokens: for each.
        selection: how tokens are chosen; greedily or coupled, where the promise is the same tokens.
        progress: told about every prompt.

    Raises:
        MxconvError: a prompt cannot be decoded.
    """
    assert selection.sampling is None or selection.accept == "coupled"
    num_tokens = num_token_mismatches = num_logit_mismatches = 0
    prompts = list(prompts)
    plain, stop = Hierarchy(hierarchy.levels[:1]), loaded.tokenizer.eos_token_ids
    for number, prompt in enumerate(prompts, 1):
        ids = loaded.tokenizer.encode(prompt)
        expected, found = (_decode(one, ids, max_new_tokens, stop, selection) for one in (plain, hierarchy))
        num_tokens += len(expected)
        length_difference = abs(len(expected) - len(found))
        pairs = list(zip(expected, found, strict=False))
        num_token_mismatches += length_difference + sum(a[0] != b[0] for a, b in pairs)
        num_logit_mismatches += length_difference + sum(a[1] != b[1] for a, b in pairs)
        progress("decode", number, len(prompts))
    return DecodeRecord(
        num_prompts=len(prompts),
        num_tokens=num_tokens,
        num_token_mismatches=num_token_mismatches,
        num_logit_mismatches=num_logit_mismatches,
        target=hierarchy.levels[0].name,
        kv_dtype=loaded.kv_dtype,
    )


def _decode(
    hierarchy: Hierarchy, prompt: list[int], max_new_tokens: int, stop_tokens: Collection[int], selection: Selection
) -> list[tuple[int, bytes]]:
    """Each new token with the SHA-256 of the logits that chose it."""
    digests: list[bytes] = []

    def keep(_: int, logits: F32) -> None:
        digests.append(hashlib.sha256(logits.tobytes()).digest())

    generation = hierarchy.generate(prompt, max_new_tokens, stop_tokens, keep, selection)
    return list(zip(generation.token_ids, digests, strict=True))
