"""Requests in, tokens out: sequences join and leave between steps, each with the tokens that it would have alone.

engine = Engine(hierarchy)
sequence = engine.submit(Request(tokenizer.encode("Once upon a time"), max_new_tokens=64))
while not engine.is_idle:
    for decided in engine.step():
        ...
"""

from dataclasses import dataclass

from mxconv.arrays import F32
from mxconv.errors import ModelError
from mxconv.serving.kv_budget import KvBudget
from mxconv.serving.scheduler import Scheduler
from mxconv.serving.sequence import Sequence
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Request

GROWTH = 64  # tokens for which there must be room where a sequence joins others, or it would soon be set back


@dataclass(frozen=True, eq=False)
class Decided:
    """One token of one sequence.

    Args:
        sequence: whose.
        token: its id.
        logits: (vocab_size,) float32: the target's, that chose it.
        guessed_by: the level whose guess it was; None where the target chose it without one.
    """

    sequence: Sequence
    token: int
    logits: F32
    guessed_by: str | None


class Engine:
    """Decodes many requests with one hierarchy. All calls come from one thread.

    Tokens and logits are those of decoding alone, bit for bit, where tokens are chosen greedily or by coupled draws.

    Args:
        hierarchy: what it learns is shared by all requests.
        max_sequences: that run at a time, at least one; others wait in order.
        kv_bytes: that the caches of running sequences may take, of all levels; None is no limit. What texts begin
            with alike is kept once, also after the end of a text while there is room.

    Raises:
        ModelError: no sequences.
    """

    def __init__(self, hierarchy: Hierarchy, max_sequences: int = 16, kv_bytes: int | None = None) -> None:
        if max_sequences < 1:
            raise ModelError(f"engine: {max_sequences} sequences at a time; at least 1 is required.")
        self._hierarchy = hierarchy
        self._max_sequences = max_sequences
        self._scheduler = Scheduler([level.decoder for level in hierarchy.levels if level.decoder is not None])
        self._budget = KvBudget(hierarchy.cached_decoders(), hierarchy.reader_caches(), kv_bytes)
        self._running: list[Sequence] = []  # those that were submitted first are first here too
        self._waiting: list[Sequence] = []
        self._undelivered: list[Decided] = []

    @property
    def running(self) -> list[Sequence]:
        """Sequences with caches, the oldest first."""
        return list(self._running)

    @property
    def waiting(self) -> list[Sequence]:
        """Sequences that wait, the next one first."""
        return list(self._waiting)

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._waiting and not self._undelivered

    def submit(self, request: Request) -> Sequence:
        """Queue a request.

        Raises:
            ModelError: no prompt, one longer than the target's positions or than the budget allows, a token that the
                target does not have, in the prompt or with a bias, or no new tokens.
        """
        self._hierarchy.check(request)
        vocab_size = self._hierarchy.vocab_size
        if outside := [token for token in request.prompt if not 0 <= token < vocab_size]:
            raise ModelError(
                f"prompt: token id {outside[0]}; ids from 0 to {vocab_size - 1} are required. "
                "Use the tokenizer that belongs to the model."
            )
        if not self._budget.holds([len(request.prompt)]):
            raise self._too_long(len(request.prompt))
        self._waiting.append(Sequence(request, self._hierarchy, self._budget))
        return self._waiting[-1]

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence at once, with what it has, "interrupted"; one that is done stays as it is."""
        if not sequence.is_done:
            sequence.end()
        self._forget_done()
        self._undelivered = [each for each in self._undelivered if each.sequence is not sequence]

    def step(self) -> list[Decided]:
        """A round of every running sequence; a prompt takes several steps.

        An interrupt may come at any moment: sequences are whole, and another step goes on.
        """
        self._set_back()
        self._admit()
        try:
            for sequence, step in self._scheduler.step(self._running):
                self._undelivered += [
                    Decided(sequence, token, logits, name)
                    for token, logits, name in zip(step.tokens, step.logits, step.guessed_by, strict=True)
                ]
                sequence.take(step)
        except BaseException:
            for sequence in self._running:  # whatever was under way begins again from the tokens that there are
                sequence.set_back()
            raise
        finally:
            self._forget_done()
        delivered, self._undelivered = self._undelivered, []
        return delivered

    def _too_long(self, num_tokens: int) -> ModelError:
        return ModelError(
            f"KV cache: {self._budget.bytes_of(num_tokens):,} bytes for one sequence of {num_tokens} tokens; at most "
            f"{self._budget.num_bytes:,} are allowed. Raise --kv-bytes, or shorten the prompt or the answer."
        )

    def _set_back(self) -> None:
        """Have the youngest give up its caches until all fit; one that does not fit alone ends."""
        while self._running and not self._budget.holds(sequence.num_tokens for sequence in self._running):
            youngest = self._running.pop()
            if self._running:
                youngest.set_back()
                self._waiting.insert(0, youngest)
            else:
                youngest.end(self._too_long(youngest.num_tokens))

    def _admit(self) -> None:
        """Run the next ones, while there is room for them to grow in."""
        while self._waiting and len(self._running) < self._max_sequences:
            lengths = [sequence.num_tokens for sequence in (*self._running, self._waiting[0])]
            num_shared = self._budget.num_shared(self._waiting[0].context)
            if self._running and not self._budget.holds((length + GROWTH for length in lengths), num_shared):
                return
            self._running.append(self._waiting.pop(0))

    def _forget_done(self) -> None:
        self._running = [sequence for sequence in self._running if not sequence.is_done]
        self._waiting = [sequence for sequence in self._waiting if not sequence.is_done]
