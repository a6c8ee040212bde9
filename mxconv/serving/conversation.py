"""Several turns with a model: messages so far, a reply piece by piece with who guessed it, and counts of it all."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from mxconv.decode import Options, TextModel, selection_of
from mxconv.errors import ModelError
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Request, Sequence
from mxconv.speculation.sampling_in_use import CHAT_DEFAULTS
from mxconv.text.text_stream import TextStream


@dataclass(frozen=True)
class ReplyPiece:
    """Text that became certain with a token; `guessed_by` names the level, None the target itself."""

    text: str
    guessed_by: str | None


@dataclass
class LevelTotal:
    """Counts of one level over all replies: tokens of the text that it guessed, and proposed and accepted ones."""

    name: str
    num_guessed: int = 0
    num_proposed: int = 0
    num_accepted: int = 0


@dataclass
class Totals:
    """Counts of all replies. A guess that several levels had counts for the first."""

    levels: list[LevelTotal]
    num_tokens: int = 0
    num_rounds: int = 0
    seconds: float = 0.0

    def count(self, sequence: Sequence, guessers: list[str | None], seconds: float) -> None:
        """Add a reply, however it ended."""
        self.num_tokens += len(guessers)
        self.num_rounds += sequence.generation.trace.num_rounds
        self.seconds += seconds
        for total, level in zip(self.levels, sequence.generation.trace.statistics, strict=True):
            total.num_proposed += level.num_proposed
            total.num_accepted += level.num_accepted
        names = {total.name: total for total in self.levels[1:]}
        for guesser in guessers:
            names.get(guesser or "", self.levels[0]).num_guessed += 1


@dataclass
class Conversation:
    """Turns with one model, which answers through its chat template; an empty `system` says nothing before them."""

    model: TextModel
    options: Options
    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sampling = self.model.sampling(self.options, CHAT_DEFAULTS)
        self._engine = Engine(self.model.hierarchy(self.options), 1)
        self.totals = Totals([LevelTotal(level.name) for level in self.model.loaded.levels])

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, for a template."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.turns]

    def say(self, text: str) -> Iterator[ReplyPiece]:
        """Take a turn. The reply stays as it is by then where pieces are no longer asked for, or it is interrupted.

        Raises:
            ModelError: there is no template, it refuses the messages, or they are too long; the turn is taken back.
        """
        self.turns.append({"role": "user", "content": text})
        try:
            prompt = self.model.encode(self.messages)
            selection = selection_of(self.model, self.options, self.sampling)
            most, eos = self.options.get("max_new_tokens", 64), self.model.loaded.tokenizer.eos_token_ids
            sequence = self._engine.submit(Request(prompt, most, eos, selection))
        except ModelError:
            self.turns.pop()
            raise
        reply = {"role": "assistant", "content": ""}
        self.turns.append(reply)
        guessers: list[str | None] = []
        begin = time.perf_counter()
        try:
            for piece in self._pieces(sequence, prompt, guessers):
                reply["content"] += piece.text
                yield piece
        finally:
            self._engine.cancel(sequence)
            self.totals.count(sequence, guessers, time.perf_counter() - begin)
        if sequence.error is not None:
            raise sequence.error

    def _pieces(self, sequence: Sequence, prompt: list[int], guessers: list[str | None]) -> Iterator[ReplyPiece]:
        stops = [*self.model.recommended.stop_strings, *self.options.get("stop_strings", ())]
        stream = TextStream(self.model.loaded.tokenizer, stops, prompt)
        while not (sequence.is_done or stream.stopped):
            for decided in self._engine.step():
                if not stream.stopped:
                    guessers.append(decided.guessed_by)
                    yield ReplyPiece(stream.feed(decided.token), decided.guessed_by)
        yield ReplyPiece(stream.finish(), guessers[-1] if guessers else None)
