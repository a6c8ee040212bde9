"""Several turns with a model: messages so far, a reply piece by piece with who guessed it, and counts of it all."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mxconv.decode import Answer, Options, TextModel
from mxconv.errors import ModelError
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Sequence
from mxconv.speculation.selection import CHAT_DEFAULTS
from mxconv.text.chat import ChatPrompt, ChatTemplate
from mxconv.text.thought_reader import ThoughtReader


@dataclass(frozen=True)
class ReplyPiece:
    """Text, or a thought, that became certain with a token; `guessed_by` names the level, None the target itself."""

    text: str
    guessed_by: str | None
    is_thought: bool = False


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
        hierarchy = self.model.hierarchy(self.options)
        self._engine = Engine(hierarchy, 1)
        self.totals = Totals([LevelTotal(level.name) for level in hierarchy.levels])

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
            template, tokenizer = ChatTemplate.from_folder(self.model.loaded.folder), self.model.loaded.tokenizer
            prompt = template.encode(tokenizer, self.messages, variables=self.model.template_variables)
            request = self.model.request(prompt.token_ids, self.options, CHAT_DEFAULTS)
            sequence = self._engine.submit(request)
        except ModelError:
            self.turns.pop()
            raise
        reply = {"role": "assistant", "content": ""}
        self.turns.append(reply)
        guessers: list[str | None] = []
        begin = time.perf_counter()
        try:
            for piece in self._pieces(sequence, prompt, guessers):
                key = "reasoning_content" if piece.is_thought else "content"
                reply[key] = reply.get(key, "") + piece.text
                yield piece
        finally:
            self._engine.cancel(sequence)
            self.totals.count(sequence, guessers, time.perf_counter() - begin)
        if sequence.error is not None:
            raise sequence.error

    def _pieces(self, sequence: Sequence, prompt: ChatPrompt, guessers: list[str | None]) -> Iterator[ReplyPiece]:
        tokenizer, form = self.model.loaded.tokenizer, prompt.thought
        names = () if form is None else (form.begin, form.end)
        shown = [token for name in names if (token := tokenizer.special_token_id(name)) is not None]
        stream = self.model.text_stream(sequence.request, self.options, shown)
        answer = Answer(self.messages, sequence.generation, stream)
        may_lack = self.options.get("constraint") is not None
        reader = None if form is None else ThoughtReader(replace(form, may_lack=may_lack), None)
        num_thought = 0

        def pieces(text: str, is_last: bool = False) -> Iterator[ReplyPiece]:
            nonlocal num_thought
            guesser = guessers[-1] if guessers else None
            if reader is not None:
                text = reader.feed(text) + (reader.finish() if is_last else "")
                if thought := reader.reasoning[num_thought:]:
                    yield ReplyPiece(thought, guesser, is_thought=True)
                    num_thought += len(thought)
            yield ReplyPiece(text, guesser)

        while not (sequence.is_done or answer.stopped):
            for decided in self._engine.step():
                if not answer.stopped:
                    guessers.append(decided.guessed_by)
                    yield from pieces(answer.take(decided.token))
        yield from pieces(answer.finish(), is_last=True)
