"""Whether speculation changes a token, or a bit of the logits that chose it."""

import hashlib
from collections.abc import Collection, Iterable, Sequence

from mxconv.arrays import F32
from mxconv.drafts.loader import LoadedPackage
from mxconv.kernels.engine import NUMPY
from mxconv.package.manifest import DecodeRecord
from mxconv.progress import Progress, silent
from mxconv.serving.engine import Engine
from mxconv.serving.request import Request
from mxconv.serving.sequence import Sequence as Running
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, Selection
from mxconv.system.processor import cpu_name
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import Prompt, num_chat_prompts


def verify_decoding(
    loaded: LoadedPackage,
    hierarchy: Hierarchy,
    prompts: Iterable[Prompt],
    max_new_tokens: int,
    selection: Selection = GREEDY,
    progress: Progress = silent,
    batch: int | None = None,
) -> DecodeRecord:
    """Decode every prompt plainly and with drafts; compare tokens, and logits of every emitted position.

    What is decoded is the first of the levels, and the record names it.

    Args:
        loaded: the package.
        hierarchy: of its levels.
        prompts: texts, or messages for the model's chat template.
        max_new_tokens: for each.
        selection: how tokens are chosen; greedily or coupled, where the promise is the same tokens.
        progress: told about every prompt.
        batch: prompts that are decoded with drafts at a time, beside each other; None is one after another.

    Raises:
        MxconvError: a prompt cannot be decoded.
    """
    assert selection.sampling is None or selection.accept == "coupled"
    num_tokens = num_token_mismatches = num_logit_mismatches = 0
    prompts = list(prompts)
    plain, stop = Hierarchy(hierarchy.levels[:1]), loaded.tokenizer.eos_token_ids
    ids_of = encode_prompts(loaded.tokenizer, loaded.folder, prompts)
    together = _decode_together(hierarchy, ids_of, max_new_tokens, stop, selection, batch) if batch else None
    for number, ids in enumerate(ids_of, 1):
        expected = _decode(plain, ids, max_new_tokens, stop, selection)
        found = together[number - 1] if together else _decode(hierarchy, ids, max_new_tokens, stop, selection)
        num_tokens += len(expected)
        length_difference = abs(len(expected) - len(found))
        pairs = list(zip(expected, found, strict=False))
        num_token_mismatches += length_difference + sum(a[0] != b[0] for a, b in pairs)
        num_logit_mismatches += length_difference + sum(a[1] != b[1] for a, b in pairs)
        progress("decode", number, len(prompts))
    return DecodeRecord(
        num_prompts=len(prompts),
        num_chat_prompts=num_chat_prompts(prompts),
        num_tokens=num_tokens,
        num_token_mismatches=num_token_mismatches,
        num_logit_mismatches=num_logit_mismatches,
        target=hierarchy.levels[0].name,
        batch=batch,
        kv_dtype=loaded.kv_dtype,
        kernel=NUMPY if loaded.matrices.engine is None else loaded.matrices.engine.name,
        processors=[cpu_name()],
    )


def _decode(
    hierarchy: Hierarchy, prompt: list[int], max_new_tokens: int, stop_tokens: Collection[int], selection: Selection
) -> list[tuple[int, bytes]]:
    """Each new token with the SHA-256 of the logits that chose it."""
    digests: list[bytes] = []

    def keep(_: int, logits: F32) -> None:
        digests.append(_digest(logits))

    generation = hierarchy.generate(prompt, max_new_tokens, stop_tokens, keep, selection)
    return list(zip(generation.token_ids, digests, strict=True))


def _decode_together(
    hierarchy: Hierarchy,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    stop_tokens: Collection[int],
    selection: Selection,
    batch: int,
) -> list[list[tuple[int, bytes]]]:
    """Of each prompt what `_decode` gives, all of them beside each other."""
    engine = Engine(hierarchy, batch)
    requests = [Request(prompt, max_new_tokens, stop_tokens, selection) for prompt in prompts]
    decoded: dict[Running, list[tuple[int, bytes]]] = {engine.submit(request): [] for request in requests}
    while not engine.is_idle:
        for each in engine.step():
            decoded[each.sequence].append((each.token, _digest(each.logits)))
    for sequence in decoded:
        if sequence.error is not None:
            raise sequence.error
    return list(decoded.values())


def _digest(logits: F32) -> bytes:
    return hashlib.sha256(logits.tobytes()).digest()
