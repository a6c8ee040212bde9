"""Text that appears while tokens are chosen, and ends where a stop string does."""

from collections.abc import Sequence

from mxconv.errors import ModelError
from mxconv.text.tokenizer import Tokenizer
from mxconv.text.transcript import REPLACEMENT, Transcript


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

    Raises:
        ModelError: a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop_strings: Sequence[str] = (), context: Sequence[int] = ()) -> None:
        if "" in stop_strings:
            raise ModelError("stop strings: one is empty; some text is required in each. Leave it out.")
        self._stop_strings = tuple(stop_strings)
        self._transcript = Transcript(tokenizer)
        if context:
            self._transcript.extend(context)
        self._num_shown = self._transcript.num_certain  # characters
        self.stopped = False

    def feed(self, token: int) -> str:
        """Append a token.

        Returns:
            The text that became certain, often none. `stopped` tells whether it was the last: tokens fed after a stop
            string add nothing.
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
        """Where the stop string begins that is complete first in the text up to `end`; the longest of several."""
        places = []
        for stop in self._stop_strings:
            begin = self._transcript.text.find(stop, self._num_shown, end)
            if begin >= 0:
                places.append((begin + len(stop), begin))
        return min(places)[1] if places else None

    def _num_held(self, end: int) -> int:
        """Characters at the end of the certain text that may begin a stop string."""
        held = 0
        for stop in self._stop_strings:
            for length in range(min(len(stop) - 1, end - self._num_shown), held, -1):
                if self._transcript.text.endswith(stop[:length], 0, end):
                    held = length
                    break
        return held
