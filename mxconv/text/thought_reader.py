"""Thoughts of a model before it answers, between markers of its chat template, taken out of the answer."""

from dataclasses import dataclass

from mxconv.text.tool_calls import AnswerReader, overlap

MARKERS = (  # before and after a thought; a template that writes or removes thoughts has the latter
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)


@dataclass(frozen=True)
class ThoughtForm:
    """The beginning of an answer that may think.

    Args:
        begin: the marker before the thought.
        end: the marker after it.
        is_open: whether the prompt ends inside a thought.
        may_lack: whether an answer that begins there may have no thought, as under a constraint: then what has no
            marker after it is the answer, and nothing is certain before.
    """

    begin: str
    end: str
    is_open: bool = False
    may_lack: bool = False

    @property
    def closed(self) -> str:
        """The text that ends an open thought at once."""
        return f"\n{self.end}\n\n"


def thought_form(template: str, prompt: str = "", continued: str = "") -> ThoughtForm | None:
    """The form of answers to a prompt that a chat template, the source of it, has made; None where none thinks.

    Args:
        template: the source.
        prompt: as the template rendered it.
        continued: the text of an assistant that is to be continued.
    """
    found = next(((begin, end) for begin, end in MARKERS if end in template), None)
    if found is None:
        return None
    begin, end = found
    is_open = prompt.rstrip().endswith(begin) or continued.rfind(begin) > continued.rfind(end)
    return ThoughtForm(begin, end, is_open)


class ThoughtReader(AnswerReader):
    """Reads an answer that may begin with a thought; what follows it is another reader's, if any.

    Spaces around the thought are neither its own nor the text's.
    """

    def __init__(self, form: ThoughtForm, inner: AnswerReader | None) -> None:
        super().__init__()
        self._form = form
        self._inner = inner
        self._state = "thought" if form.is_open else "beginning"  # then "behind" a thought, and "text"
        if inner is not None:
            self.calls = inner.calls

    def feed(self, text: str) -> str:
        self._held += text
        begin, end = self._form.begin, self._form.end
        if self._state == "beginning":
            rest = self._held.lstrip()
            if begin.startswith(rest[: len(begin)]) and len(rest) < len(begin):
                return ""
            self._state = "text"
            if rest.startswith(begin):
                self._state, self._held = "thought", rest[len(begin) :]
        if self._state == "thought":
            at = self._held.find(end)
            if at < 0 and self._form.is_open and self._form.may_lack:
                return ""
            self._think(at if at >= 0 else len(self._held) - overlap(self._held, end))
            if at < 0:
                return ""
            self._state, self._held = "behind", self._held.lstrip()[len(end) :]
        if self._state == "behind":
            self._held = self._held.lstrip()
            if not self._held:
                return ""
            self._state = "text"
        return self._said(self._release(len(self._held)))

    def finish(self) -> str:
        if self._state == "thought" and not (self._form.is_open and self._form.may_lack):
            self._think(len(self._held))
            self._held = ""
        return self._said(self._release(len(self._held)), is_last=True)

    def _said(self, text: str, is_last: bool = False) -> str:
        """Let the other reader take apart what is no thought."""
        if self._inner is None:
            return text
        num_known = len(self._inner.reasoning)
        text = self._inner.feed(text) + (self._inner.finish() if is_last else "")
        self.reasoning += self._inner.reasoning[num_known:]
        return text

    def _think(self, end: int) -> None:
        """Append what is held up to a place to the thought, but for spaces at its beginning and end."""
        piece, rest = self._held[:end], self._held[end:]
        if not self.reasoning:
            piece = piece.lstrip()
        said = piece.rstrip()
        self.reasoning += said
        self._held = piece[len(said) :] + rest
