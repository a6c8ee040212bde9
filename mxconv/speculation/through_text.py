"""A draft that has another tokenizer than the level above.

The context goes to the draft as text, and what the draft writes comes back as text. Neither loses or doubles a byte:
the text of the proposed tokens, after the context's, is the beginning of what the draft wrote.
"""

import math
import re
import time
from collections.abc import Sequence
from itertools import takewhile

from mxconv.arrays import F32
from mxconv.drafts.proposal import Draft, Proposal
from mxconv.drafts.statistics import LevelStatistics
from mxconv.speculation.reencoding import Reencoding
from mxconv.text.text_stream import REPLACEMENT, Transcript
from mxconv.text.tokenizer import Tokenizer

MAX_DRAFT_TOKENS = 64  # asked of the inner draft at once
LONGEST_PENDING = 3  # bytes, and so tokens, of a character that is not complete
LAST_WORD = re.compile(r"\s*\w+\Z")
WINDOW = 48  # characters of the context that are encoded with what follows


class ThroughText:
    """Proposals of a draft with another tokenizer, in the tokens of the level above.

    Args:
        inner: the draft.
        target_tokenizer: that of the level above.
        draft_tokenizer: that of `inner`.
        max_positions: tokens that `inner` can have in a context; the first half of longer ones is left out.
    """

    def __init__(
        self,
        inner: Draft,
        target_tokenizer: Tokenizer,
        draft_tokenizer: Tokenizer,
        max_positions: int | None = None,
    ) -> None:
        self.inner = inner
        self._target_tokenizer = target_tokenizer
        self._draft_tokenizer = draft_tokenizer
        self._context = Transcript(target_tokenizer)
        self._draft_context = Transcript(draft_tokenizer)
        longest = None if max_positions is None else max(max_positions - MAX_DRAFT_TOKENS, max_positions // 2)
        self._reencoding = Reencoding(draft_tokenizer, longest)

    @property
    def statistics(self) -> LevelStatistics:
        """The statistics of the draft, with the time spent on text here.

        What the level above counts in them is tokens of its own, never tokens of the draft.
        """
        return self.inner.statistics

    def propose(self, context: Sequence[int], num_tokens: int, floor: float | None = None) -> Proposal:
        """At most `num_tokens` tokens; none where the draft has nothing to say or no tokens can say it."""
        begin = time.perf_counter()
        self._context.align(context)
        pending = self._take_back_pending()
        draft_context = self._reencoding.encode(self._context.text)
        tokens: list[int] = []
        inner_seconds = 0.0
        if draft_context and num_tokens > 0:
            self._draft_context.align(draft_context)
            wanted = self._num_draft_tokens(num_tokens, len(context))
            asked = time.perf_counter()
            proposed = self.inner.propose(draft_context, wanted).tokens
            inner_seconds = time.perf_counter() - asked
            tokens = self._in_target_tokens(self._written(proposed), pending, num_tokens)
        self.statistics.seconds += time.perf_counter() - begin - inner_seconds
        return Proposal(tokens)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        """Nothing: logits over one vocabulary mean nothing in another."""

    def _take_back_pending(self) -> list[int]:
        """Remove the tokens of a character that the context ends inside of; the draft reads what is before it."""
        pending: list[int] = []
        while self._context.text.endswith(REPLACEMENT) and len(pending) < LONGEST_PENDING:
            pending.insert(0, self._context.tokens[-1])
            self._context.rewind(len(self._context.tokens) - 1)
        return pending

    def _num_draft_tokens(self, num_tokens: int, num_context: int) -> int:
        """How many draft tokens are one more than `num_tokens` of the target, judged by the context."""
        draft_tokens_per_character = len(self._draft_context.tokens) / max(len(self._draft_context.text), 1)
        characters_per_token = max(len(self._context.text), 1) / max(num_context, 1)
        wanted = math.ceil((num_tokens + 1) * draft_tokens_per_character * characters_per_token)
        return min(wanted, MAX_DRAFT_TOKENS)

    def _written(self, proposed: list[int]) -> str:
        """What the draft wrote, up to a token without text or with bytes that make no character.

        Where it was still writing, a word at the end may be half a word, which has other tokens than the whole one; it
        is left out unless it is all there is.
        """
        text, stops = self._draft_context.text, self._draft_tokenizer.eos_token_ids
        told = list(
            takewhile(lambda token: token not in stops and not self._draft_tokenizer.is_silent(token), proposed)
        )
        self._draft_context.extend(told)
        if not self._draft_context.text.startswith(text):
            return ""
        written = self._draft_context.text[len(text) :].split(REPLACEMENT)[0]
        whole_words = LAST_WORD.sub("", written) if len(told) == len(proposed) else ""
        return whole_words or written

    def _in_target_tokens(self, written: str, pending: list[int], num_tokens: int) -> list[int]:
        """Tokens of the target for a text after the context's, as the target would cut it or else on its own."""
        text = self._context.text
        window = text[-WINDOW:]
        if len(text) > WINDOW:
            window = window[window.find(" ") + 1 :]
        for anchor in dict.fromkeys((window, "", "\n")):  # after a new line a word gets no space in front
            tokens = self._target_tokenizer.encode_from(anchor + written, len(anchor))
            tokens = list(takewhile(lambda token: not self._target_tokenizer.is_silent(token), tokens))
            if tokens[: len(pending)] != pending:
                continue
            if fitting := self._fitting(tokens[: len(pending) + num_tokens], len(pending), written):
                return fitting
        return []

    def _fitting(self, tokens: list[int], num_pending: int, written: str) -> list[int]:
        """As many of the tokens, after the pending ones, as have a text with which `written` begins."""
        text, num_known = self._context.text, len(self._context.tokens)
        while len(tokens) > num_pending:
            self._context.extend(tokens)
            found = self._context.text
            self._context.rewind(num_known)
            if found.startswith(text) and written.startswith(found[len(text) :]):
                break
            tokens = tokens[:-1]
        return tokens[num_pending:]
