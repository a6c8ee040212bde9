"""A growing text as the token ids of a draft's own tokenizer."""

from mxconv.text.tokenizer import Tokenizer

LONGEST_TAIL = 1024  # characters encoded anew each time; after them the tokens are kept
SHORTEST_TAIL = 256  # a text is seldom taken back further than this
ANCHOR = 32  # characters in front of a piece of text that are encoded with it


class Reencoding:
    """Texts as a draft reads them: its own first token in front, no last one, no more than it has positions for.

    Only the end of a long text is encoded each time, cut in front of a space. Where a tokenizer would join words over
    that cut, the tokens differ from those of the whole text; a draft can live with that, and nobody else sees them.

    Args:
        tokenizer: the draft's.
        max_tokens: where a text has more, its first half is left out; None for no limit.
    """

    def __init__(self, tokenizer: Tokenizer, max_tokens: int | None = None) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._first = _first_tokens(tokenizer)
        self._omitted = ""  # the text in front of what the draft sees
        self._kept = ""  # text after it whose tokens are known
        self._tokens: list[int] = []

    def encode(self, text: str) -> list[int]:
        """The draft's token ids of a text, most often one that begins like the one before."""
        if not text.startswith(self._omitted + self._kept):
            self._forget(omitted="")
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
        self._forget(omitted=text[: text.find(" ", half) + 1 or half])
        return self.encode(text)

    def _forget(self, omitted: str) -> None:
        self._omitted, self._kept, self._tokens = omitted, "", []


def _first_tokens(tokenizer: Tokenizer) -> list[int]:
    """What the tokenizer puts in front of a text."""
    whole, text = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
    places = range(len(whole) - len(text) + 1)
    return whole[: next((place for place in places if whole[place : place + len(text)] == text), 0)]


def _word_begin(text: str, end: int) -> int:
    """The last space before `end` that stands alone between other characters, 0 if there is none."""
    place = text.rfind(" ", 1, end)
    while place > 0 and (text[place - 1].isspace() or text[place + 1 : place + 2].isspace()):
        place = text.rfind(" ", 1, place)
    return max(place, 0)
