"""Traces for tests: of real runs of tiny models, written as `mxconv generate --trace` writes them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from plug_ins import RECYCLING
from tiny_levels import VOCAB_SIZE, look_up, self_draft, target_level
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel

from mxconv.cli.generate_results import trace_lines
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Request
from mxconv.text.tokenizer import Tokenizer

HOSTILE = (
    "</script><script>alert(1)</script>",
    "\n",
    " ",
    "\t",
    "<!--",
    "&amp;",
    "\x1b[31m",
    "\u202e",
    '"><b>',
    "{{ 7 }}",
)
PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5, 6, 5], [9])


@cache
def tokenizer() -> Tokenizer:
    """One whose tokens are what a page must not take at its word."""
    words = {word: index for index, word in enumerate(HOSTILE)}
    words |= {f" w{index}": index for index in range(len(HOSTILE), VOCAB_SIZE)}
    backend = Backend(WordLevel(words, unk_token=" w23"))
    backend.decoder = Fuse()
    return Tokenizer(backend, None, frozenset(), "hostile")


@cache
def run_lines(tree: int = 16) -> list[dict[str, Any]]:
    """Three prompts by a target with a 4-bit draft and a look-up below it, and the same with the look-up alone."""
    lines: list[dict[str, Any]] = []
    drafts = [[self_draft(), look_up("prompt-lookup")], [look_up(RECYCLING)], [look_up(RECYCLING)]]
    for number, (prompt, own) in enumerate(zip(PROMPTS, drafts, strict=True)):
        hierarchy = Hierarchy([target_level(), *own], [6], [0.0], tree)
        generation = hierarchy.begin()
        generation.trace.records_trees = True
        for _ in hierarchy.stream(Request(prompt, 28), generation):
            pass
        lines += trace_lines(number, generation, tokenizer().decode(prompt), prompt, tokenizer())
    return lines


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
