"""Texts to evaluate models on: windows of a file, or a target's own answers to prompts.

Of a window the second half counts, as in llama.cpp's `llama-perplexity`; of an answer every token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mxconv.arrays import F32, I64
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.errors import ModelError
from mxconv.progress import Progress
from mxconv.speculation.continuations import continuations
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import Prompt
from mxconv.text.texts import read_pieces

BATCH = 8  # prompts that are answered at a time


@dataclass(frozen=True)
class ScoredText:
    """A text whose tokens count from one of them on, the second at the earliest."""

    token_ids: list[int]
    first_scored: int

    @property
    def tokens(self) -> I64:
        """The tokens that count."""
        return np.array(self.token_ids[self.first_scored :], np.int64)

    def logits(self, decoder: Decoder) -> F32:
        """What a model expects at the places of these tokens, (num_tokens, vocab_size)."""
        rows, num_scored = self.token_ids[:-1], len(self.token_ids) - self.first_scored
        return decoder.forward_batch([SequenceRows(rows, decoder.new_cache(len(rows)), num_logits=num_scored)])[0]


def windows(loaded: LoadedPackage, path: Path, length: int, num_tokens: int) -> list[ScoredText]:
    """The windows of a file's texts, which follow one another as one text; what is left at its end is no window.

    Where the tokenizer puts a token before texts, every window begins with it, in place of its own first token.

    Args:
        loaded: whose tokenizer is used.
        path: of a text, or .jsonl with `text` or `prompt`.
        length: of a window in tokens, 3 at least.
        num_tokens: of all windows together, at most; one window there is always.

    Raises:
        MxconvError: the file cannot be read or has no whole window, or the model has no positions for one.
    """
    if length > (most := loaded.config.max_position_embeddings):
        raise ModelError(
            f"--context: {length} tokens; the model has {most} positions (max_position_embeddings), and a window must "
            "fit. Choose a shorter one."
        )
    tokenizer, found, rest = loaded.tokenizer, list[ScoredText](), list[int]()
    prefix = tokenizer.prefix
    for piece in read_pieces(path, lambda _: None):
        rest += tokenizer.encode(piece.text, piece.begins_document)
        while len(rest) >= length:
            found.append(ScoredText(prefix + rest[len(prefix) : length], length // 2 + 1))
            rest = rest[length:]
            if (len(found) + 1) * length > num_tokens:
                return found
    if not found:
        raise ModelError(
            f"{path}: {len(rest)} tokens; a window of {length} is required. Give a longer file, or a shorter --context."
        )
    return found


def answers(
    loaded: LoadedPackage, prompts: Sequence[Prompt], max_new_tokens: int, num_tokens: int, progress: Progress
) -> list[ScoredText]:
    """Prompts with the target's own greedy answers, until these have `num_tokens` tokens.

    Raises:
        MxconvError: a prompt cannot be decoded.
    """
    given, ends = encode_prompts(loaded.tokenizer, loaded.folder, prompts), loaded.tokenizer.eos_token_ids
    texts = continuations(loaded.target, given, max_new_tokens, ends=ends, batch=BATCH)
    found, done = list[ScoredText](), 0
    for prompt, text in zip(given, texts, strict=True):
        found.append(ScoredText(text, len(prompt)))
        done += len(text) - len(prompt)
        progress("answer prompts", min(done, num_tokens), num_tokens)
        if done >= num_tokens:
            break
    return found
