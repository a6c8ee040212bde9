"""A run as JSON lines, one a round and level: what `mxconv generate --trace` writes and others read.

The target's line of a round also has, where the trace records trees:

    tree        what was proposed to it, and what became of it: `draft`, `tokens`, `parents`, `probabilities` (empty
                where the draft has none), `path` (the accepted nodes), `emitted`; `texts` and `emitted_texts` are
                labels
    num_tokens  how many of `emitted` the text got: fewer than all where it ends among them, and then `emitted` ends too
    text        what they added to it; a character whose bytes come in several rounds is in the last of them
    prompt_text in a prompt's first round, with `cpu`, the processor that decoded
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from mxconv.speculation.statistics import Generation, RoundTree
from mxconv.system.processor import cpu_name
from mxconv.text.text_stream import TextStream, token_label
from mxconv.text.tokenizer import Tokenizer


def trace_lines(
    number: int, generation: Generation, prompt_text: str, prompt: Sequence[int], tokenizer: Tokenizer
) -> Iterator[dict[str, Any]]:
    """The lines of one prompt, numbered from 0, and what it became."""
    stream = TextStream(tokenizer, (), prompt)
    before: int | None = prompt[-1] if prompt else None
    left = list(generation.token_ids)
    for entry in generation.trace.entries:
        line = {"prompt": number, **entry._replace(tree=None)._asdict()}
        del line["tree"]
        if entry.tree is not None:
            emitted = list(entry.tree.emitted[: len(left)])
            del left[: len(emitted)]
            text = "".join(map(stream.feed, emitted)) + ("" if left else stream.finish())
            line |= {"tree": _tree(entry.tree, before, emitted, tokenizer), "num_tokens": len(emitted), "text": text}
            if entry.round == 0:
                line |= {"prompt_text": prompt_text, "cpu": cpu_name()}
            before = emitted[-1] if emitted else before
        yield line


def _tree(tree: RoundTree, before: int | None, emitted: Sequence[int], tokenizer: Tokenizer) -> dict[str, Any]:
    after = [before if parent < 0 else tree.tokens[parent] for parent in tree.parents]
    return {
        "draft": tree.draft,
        "tokens": list(tree.tokens),
        "parents": list(tree.parents),
        "probabilities": [round(share, 6) if isfinite(share) else None for share in tree.probabilities],
        "path": tree.path,
        "emitted": list(emitted),
        "texts": [token_label(tokenizer, *pair) for pair in zip(after, tree.tokens, strict=True)],
        "emitted_texts": [token_label(tokenizer, *pair) for pair in zip([before, *emitted], emitted, strict=False)],
    }
