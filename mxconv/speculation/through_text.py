"""A draft that has another tokenizer than the level above.

The context goes to the draft as text, and what the draft writes comes back as text. Neither loses or doubles a byte:
the text of the proposed tokens, after the context's, is the beginning of what the draft wrote.
"""

import math
import re
import time
from collections.abc import Sequence
from itertools import takewhile

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.proposal import Draft, Proposal
from mxconv.text.text_stream import REPLACEMENT, Transcript
from mxconv.text.tokenizer import Tokenizer

MAX_DRAFT_TOKENS = 64  # requested of the inner draft at a time
LONGEST_PENDING = 3  # bytes, and so tokens, of a character that is not complete
LAST_WORD = re.compile(r"\s*\w+\Z")
WINDOW = 48  # characters of the context that are encoded with what follows
LONGEST_TAIL = 1024  # characters of a text that are encoded anew each time; after them the tokens are kept
SHORTEST_TAIL = 256  # a text is seldom taken back further than this
ANCHOR = 32  # characters in front of a piece of text that are encoded with it


class Reencoding:
    """Texts as a draft reads them: its own first token in front, no last one, no more than it has positions for.

    Only the end of a long text is encoded each time, cut in front of a space. Where a tokenizer would join words over
    that cut, the tokens differ from those of the whole text; no other level sees them.
    Where a text has more than `max_tokens`, its first half is left out.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        whole, alone = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
        places = range(len(whole) - len(alone) + 1)
        self._first = whole[: next((place for place in places if whole[place : place + len(alone)] == alone), 0)]
        self._omitted = ""  # the text in front of what the draft sees
        self._kept = ""  # text after it whose tokens are known
        self._tokens: list[int] = []

    def encode(self, text: str) -> list[int]:
        """The draft's token ids of a text, most often one that begins like the one before."""
        if not text.startswith(self._omitted + self._kept):
            self._omitted, self._kept, self._tokens = "", "", []
        tail = text[len(self._omitted) + len(self._kept) :]
        if len(tail) > LONGEST_TAIL and (cut := _word_begin(tail, len(tail) - SHORTEST_TAIL)):
            self._tokens += self._encode_tail(tail[:cut])
            self._kept += tail[:cut]
            tail = tail[cut:]
        tokens = self._first + self._tokens + self._encode_tail(tail)
        if self._max_tokens is None or len(tokens) <= self._max_tokens or len(text) == len(self._omitted):
            return tokens
        return self._shorten(text)

    def _encode_tail(self, tail: str) -> list[int]:
        anchor = self._kept[-ANCHOR:]
        return self._tokenizer.encode_from(anchor + tail, len(anchor))

    def _shorten(self, text: str) -> list[int]:
        """Leave out half of what is visible, so that the next texts fit as they are and a cache stays of use."""
        begin = len(self._omitted)
        half = begin + (len(text) - begin + 1) // 2
        self._omitted, self._kept, self._tokens = text[: text.find(" ", half) + 1 or half], "", []
        return self.encode(text)


def _word_begin(text: str, end: int) -> int:
    """The last space before `end` between other characters, 0 if there is none."""
    place = text.rfind(" ", 1, end)
    while place > 0 and (text[place - 1].isspace() or text[place + 1 : place + 2].isspace()):
        place = text.rfind(" ", 1, place)
    return max(place, 0)


class ThroughText(Draft):
    """Proposals of a draft with another tokenizer, `inner`, in the tokens of the level above.

    The draft can have `max_positions` tokens in a context; the first half of longer ones is left out.
    """

    def __init__(
        self, inner: Draft, target_tokenizer: Tokenizer, draft_tokenizer: Tokenizer, max_positions: int | None = None
    ) -> None:
        self.inner = inner
        self.statistics = inner.statistics  # with the seconds spent on text here; tokens are those of the level above
        self._target_tokenizer = target_tokenizer
        self._draft_tokenizer = draft_tokenizer
        self._context = Transcript(target_tokenizer)
        self._draft_context = Transcript(draft_tokenizer)
        longest = None if max_positions is None else max(max_positions - MAX_DRAFT_TOKENS, max_positions // 2)
        self._reencoding = Reencoding(draft_tokenizer, longest)

    def num_unread(self, context: Sequence[int]) -> int:
        """About as many as if its tokens were those of the level above."""
        return self.inner.num_unread(context)

    def propose(self, context: Sequence[int], limits: TreeLimits) -> Proposal:
        """A chain; none where the draft proposes nothing or no tokens have its text."""
        num_tokens = limits.most_depth
        begin = time.perf_counter()
        self._context.align(context)
        pending = self._take_back_pending()
        draft_context = self._reencoding.encode(self._context.text)
        tokens: list[int] = []
        inner_seconds = 0.0
        if draft_context and num_tokens > 0:
            self._draft_context.align(draft_context)
            wanted = self._num_draft_tokens(num_tokens, len(context))
            inner_begin = time.perf_counter()
            proposed = self.inner.propose(draft_context, TreeLimits.chain(wanted)).tokens
            inner_seconds = time.perf_counter() - inner_begin
            tokens = self._in_target_tokens(self._written(proposed), pending, num_tokens)
        self.statistics.seconds += time.perf_counter() - begin - inner_seconds
        return Proposal(tokens)

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
        shown = list(
            takewhile(lambda token: token not in stops and not self._draft_tokenizer.is_silent(token), proposed)
        )
        self._draft_context.extend(shown)
        if not self._draft_context.text.startswith(text):
            return ""
        written = self._draft_context.text[len(text) :].split(REPLACEMENT)[0]
        whole_words = LAST_WORD.sub("", written) if len(shown) == len(proposed) else ""
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
