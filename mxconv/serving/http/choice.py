"""One choice of a reply while it is written: tokens in, pieces of text out, until it ends."""

from dataclasses import dataclass, field

from mxconv.serving.http.job import Prompt
from mxconv.serving.http.placed import PlacedLogprob, place
from mxconv.serving.http.updates import LevelCount, NewToken, Update
from mxconv.text.text_stream import TextStream
from mxconv.text.tokenizer import Tokenizer

NUM_CONTEXT = 64  # tokens


@dataclass(frozen=True)
class PieceOfToken:
    """The text that became certain with a token: often its own, now and then none or that of several."""

    token: int
    text: str
    guessed_by: str | None


@dataclass(frozen=True)
class Delta:
    """What an update adds to a choice."""

    text: str
    pieces: list[PieceOfToken]
    logprobs: list[PlacedLogprob]
    levels: list[LevelCount]


@dataclass
class Choice:
    """The state of one choice.

    Args:
        index: among the reply's.
        prompt: what it answers.
        seed: of its draws.
        tokenizer: the target's.
        stop_strings: that end it; they are no part of the text.
        shown: what its text begins with: the prompt, where a client wants it echoed.
    """

    index: int
    prompt: Prompt
    seed: int
    tokenizer: Tokenizer
    stop_strings: list[str]
    shown: str = ""
    num_tokens: int = 0
    num_rounds: int = 0  # updates with tokens
    finish_reason: str | None = None
    error: Update | None = None
    pieces: list[PieceOfToken] = field(default_factory=list)
    logprobs: list[PlacedLogprob] = field(default_factory=list)
    prompt_logprobs: list[PlacedLogprob] = field(default_factory=list)  # where they are shown
    levels: list[LevelCount] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = self.shown
        self._stream = TextStream(
            self.tokenizer, self.stop_strings, _audible_end(self.prompt.token_ids, self.tokenizer)
        )
        self._last = self.prompt.token_ids[-1]

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    def take(self, update: Update) -> Delta:
        """Go on with what a step decided; tokens behind a stop string are dropped."""
        pieces: list[PieceOfToken] = []
        logprobs: list[PlacedLogprob] = []
        for new in update.tokens:
            logprobs += self._placed(new, len(self.text) + sum(len(piece.text) for piece in pieces))
            pieces.append(PieceOfToken(new.token, self._stream.feed(new.token), new.guessed_by))
            self.num_tokens += 1
            self._last = new.token
            if self._stream.stopped:
                self.finish_reason = "stop"
                break
        else:
            if update.ending == "error":
                self.error = update
            elif update.ending is not None:
                self.finish_reason = update.ending
        text = "".join(piece.text for piece in pieces)
        if self.finish_reason is not None and (rest := self._stream.finish()):
            text += rest
            if pieces:
                pieces[-1] = PieceOfToken(pieces[-1].token, pieces[-1].text + rest, pieces[-1].guessed_by)
            if self._stream.stopped:
                self.finish_reason = "stop"
        self.num_rounds += bool(pieces)
        self.text += text
        self.pieces += pieces
        self.logprobs += logprobs
        self.levels = update.levels or self.levels
        return Delta(text, pieces, logprobs, self.levels)

    def _placed(self, new: NewToken, offset: int) -> list[PlacedLogprob]:
        if new.logprobs is None:
            return []
        return [place(new.token, self._last, new.logprobs, offset, self.tokenizer)]


def _audible_end(tokens: list[int], tokenizer: Tokenizer) -> list[int]:
    """What the new text is decoded behind: the last tokens do, if they have any text; long prompts take long."""
    end = tokens[-NUM_CONTEXT:]
    return end if tokenizer.decode(end) else tokens
