"""Token ids and their text, decoded as they come.

Decoding all tokens for each new one would take quadratic time. Only the last few are decoded, from a place where the
text before can no longer change, and together with some before it, since decoders treat the first word specially.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mxconv.text.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"  # what stands for bytes that make no character, or none yet


@dataclass(frozen=True)
class Mark:
    """A place in front of which no further token changes the text."""

    num_tokens: int
    num_characters: int
    window: int  # decoding from this token on shows how the text goes on behind the mark


class Transcript:
    """Tokens and their text, special tokens left out.

    `text` is what `tokenizer.decode(tokens)` gives; its first `num_certain` characters stay, whatever follows.

    Args:
        tokenizer: decodes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._marks = [Mark(0, 0, 0)]
        self.tokens: list[int] = []
        self.text = ""

    @property
    def num_certain(self) -> int:
        return self._marks[-1].num_characters

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        self.tokens += tokens
        mark = self._marks[-1]
        before = self._decode(mark.window, mark.num_tokens)
        behind = self._decode(mark.window, len(self.tokens))
        if behind.startswith(before):
            self.text = self.text[: mark.num_characters] + behind[len(before) :]
        else:
            self.text = self._decode(0, len(self.tokens))
        if self._ends_certainly():
            # a window must show something, or what the decoder does to the first word would happen behind it
            window = mark.num_tokens if self._decode(mark.num_tokens, len(self.tokens)) else mark.window
            self._marks.append(Mark(len(self.tokens), len(self.text), window))

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
        return self._tokenizer.decode(self.tokens[begin:end]) if begin < end else ""

    def _ends_certainly(self) -> bool:
        """Not where the next token could complete a character, or spoil one that consists of byte tokens."""
        if self.text.endswith(REPLACEMENT):
            return False
        audible = (token for token in reversed(self.tokens) if not self._tokenizer.is_silent(token))
        last = next(audible, None)
        return last is not None and not self._tokenizer.is_byte(last)
