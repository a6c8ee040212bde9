"""Tokens and their text: a transcript that follows them, a stream of text that is certain, labels of single tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from mxconv.errors import ModelError
from mxconv.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # replaces bytes that make no character, or none yet


@dataclass(frozen=True)
class Mark:
    """A place before which no further token changes the text."""

    num_tokens: int
    num_characters: int
    window: int  # decoding from this token on shows how the text goes on after the mark
    before: str  # the text from there to the mark


class Transcript:
    """Tokens and their text, decoded as they come, special tokens left out but for those that are `shown`.

    `text` is what `tokenizer.decode(tokens)` gives where none is shown; its first `num_certain` characters stay,
    whatever follows. Decoding all tokens for each new one would take quadratic time. Only the last few are decoded,
    from a place where the text before can no longer change, and together with some before it, since decoders treat the
    first word specially.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._shown = frozenset(shown)
        self._marks = [Mark(0, 0, 0, "")]
        self.tokens: list[int] = []
        self.text = ""

    @property
    def num_certain(self) -> int:
        return self._marks[-1].num_characters

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        self.tokens += tokens
        mark = self._marks[-1]
        after = self._decode(mark.window, len(self.tokens))
        if after.startswith(mark.before):
            self.text = self.text[: mark.num_characters] + after[len(mark.before) :]
        else:
            self.text = self._decode(0, len(self.tokens))
        if self._ends_certainly():
            # a window must show something, or what the decoder does to the first word would happen after it
            new = self._decode(mark.num_tokens, len(self.tokens))
            window, before = (mark.num_tokens, new) if new else (mark.window, after)
            self._marks.append(Mark(len(self.tokens), len(self.text), window, before))

    def rewind(self, num_tokens: int) -> None:
        """Keep the first tokens only."""
        while self._marks[-1].num_tokens > num_tokens:
            self._marks.pop()
        mark = self._marks[-1]
        rest = self.tokens[mark.num_tokens : num_tokens]
        self.text = self.text[: mark.num_characters]
        del self.tokens[mark.num_tokens :]
        if rest:
            self.extend(rest)

    def align(self, tokens: Sequence[int]) -> None:
        """Become the transcript of `tokens`; what they have in common with those here is not decoded again."""
        num_common = len(self.tokens)
        if list(tokens[:num_common]) != self.tokens:
            pairs = zip(self.tokens, tokens, strict=False)
            num_common = next((index for index, (old, new) in enumerate(pairs) if old != new), len(tokens))
            self.rewind(num_common)
        if len(tokens) > num_common:
            self.extend(tokens[num_common:])

    def _decode(self, begin: int, end: int) -> str:
        runs = groupby(self.tokens[begin:end], self._shown.__contains__)
        return "".join(self._tokenizer.decode(list(run), skip_special_tokens=not shown) for shown, run in runs)

    def _ends_certainly(self) -> bool:
        """Whether no next token could complete a character, or spoil one that consists of byte tokens."""
        if self.text.endswith(REPLACEMENT):
            return False
        silent = self._tokenizer.is_silent
        last = next((token for token in reversed(self.tokens) if token in self._shown or not silent(token)), None)
        return last is not None and not self._tokenizer.is_byte(last)


class TextStream:
    """Token ids in, pieces of text out, each as soon as nothing that follows can change it.

    Held back are characters of which bytes are missing and what could be the beginning of a stop string. All pieces
    together are what the tokens add to the text that `tokenizer.decode` gives, up to the stop string that is complete
    first, which is left out.

        stream = TextStream(tokenizer, ["\\n\\n"])
        for token in tokens:
            print(stream.feed(token), end="")
            if stream.stopped:
                break
        print(stream.finish())

    Args:
        tokenizer: decodes.
        stop_strings: texts that end the generation.
        context: tokens before those that are fed: their text is not shown, but without them many tokenizers would drop
            the space that the first new word begins with.
        shown: special tokens whose names are part of the text.

    Raises:
        ModelError: a stop string is empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop_strings: Sequence[str] = (),
        context: Sequence[int] = (),
        shown: Iterable[int] = (),
    ) -> None:
        if "" in stop_strings:
            raise ModelError("stop strings: one is empty; some text is required in each. Leave it out.")
        self._stop_strings = tuple(stop_strings)
        self._transcript = Transcript(tokenizer, shown)
        if context:
            self._transcript.extend(context)
        self._num_shown = self._transcript.num_certain  # characters
        self.stopped = False
        self.stop_string: str | None = None  # that ended it

    def feed(self, token: int) -> str:
        """Append a token, and return the text that became certain, often none.

        `stopped` tells whether it was the last: tokens fed after a stop string add nothing.
        """
        if self.stopped:
            return ""
        self._transcript.extend([token])
        text = self._transcript.text
        num_certain = self._transcript.num_certain
        # a stop string ends the text, so it need not wait for the next token to confirm its last bytes
        if (begin := self._find_stop(max(num_certain, len(text.rstrip(REPLACEMENT))))) is not None:
            self.stopped = True
            return self._show(begin)
        return self._show(num_certain - self._num_held(num_certain))

    def finish(self) -> str:
        """The rest of the text, when no more tokens come."""
        if self.stopped:
            return ""
        begin = self._find_stop(len(self._transcript.text))
        self.stopped = begin is not None
        return self._show(len(self._transcript.text) if begin is None else begin)

    def _show(self, end: int) -> str:
        piece = self._transcript.text[self._num_shown : end]
        self._num_shown += len(piece)
        return piece

    def _find_stop(self, end: int) -> int | None:
        """The beginning of the `stop_string` that is complete first in the text up to `end`; the longest of several."""
        text, shown = self._transcript.text, self._num_shown
        found = [(text.find(stop, shown, end), stop) for stop in self._stop_strings]
        places = [(begin + len(stop), begin, stop) for begin, stop in found if begin >= 0]
        _, begin, self.stop_string = min(places, default=(None, None, None))
        return begin

    def _num_held(self, end: int) -> int:
        """Characters at the end of the certain text that may begin a stop string."""
        text, most = self._transcript.text, end - self._num_shown
        beginnings = (stop[:length] for stop in self._stop_strings for length in range(1, min(len(stop) - 1, most) + 1))
        return max((len(each) for each in beginnings if text.endswith(each, 0, end)), default=0)


def token_label(tokenizer: Tokenizer, before: int | None, token: int) -> str:
    """The text that a token adds after another, for people to look at.

    Decoders drop the space in front of a text's first word, so a token is decoded together with the one before.
    Special tokens have their names; of a character's bytes, one each has its name, `<0xE2>`, where the vocabulary has
    one, and U+FFFD elsewhere. Labels joined together are therefore not always the text. A number that is no token has
    no label.
    """
    if tokenizer.is_byte(token):
        return tokenizer.name_of(token)
    first = [] if before is None else [before]
    start, whole = (tokenizer.decode(tokens, skip_special_tokens=False) for tokens in (first, [*first, token]))
    if not whole.startswith(start) or start.endswith(REPLACEMENT):
        return tokenizer.decode([token], skip_special_tokens=False)
    return whole[len(start) :]
