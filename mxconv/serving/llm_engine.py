"""Requests in, tokens out: sequences join and leave between steps, each with the tokens that it would have alone.

engine = Engine(hierarchy)
sequence = engine.submit(Request(tokenizer.encode("Once upon a time"), max_new_tokens=64))
while not engine.is_idle:
    for decided in engine.step():
        ...

A step is a round of each sequence, every pass over the weights for all that wait for it. `Batch` has texts instead.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from mxconv.arrays import F32
from mxconv.decode import Answer, Options, TextModel
from mxconv.engine.decoder import Decoder
from mxconv.errors import ModelError, MxconvError, PoolFull
from mxconv.serving.joint_passes import PROMPT_ROWS, Evaluated, KvBudget, Piece
from mxconv.serving.sequence import Sequence
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.passes import JointPass, Load
from mxconv.speculation.selection import Request
from mxconv.speculation.statistics import Step
from mxconv.text.messages import Prompt

MOST_ROWS = 512  # of long chains in a pass


class Scheduler:
    """Runs rounds side by side.

    All go on until each waits for a pass. Then the cheapest model that anybody waits for evaluates what all want of it,
    and these go on; the target comes when nobody waits for anything else, so that it evaluates all in one pass. A long
    chain of rows, a prompt, is evaluated in pieces, one a step; until it is through, its sequence lets the others go.
    """

    def __init__(self, decoders: Listed[Decoder]) -> None:
        self._target = decoders[0]
        self._num_passes = count(1)
        self._depths = {id(decoder): depth for depth, decoder in enumerate(decoders)}

    def step(self, sequences: Listed[Sequence]) -> Iterator[tuple[Sequence, Step]]:
        """A round of each sequence that is not inside a prompt, as they end; one that fails ends alone."""
        beginning = [sequence for sequence in sequences if sequence.wanted is None]
        load, of_target = self._loads(sequences)
        for sequence in beginning:
            sequence.passes.expect(load, self._target, of_target)
            yield from self._gone_on(sequence)
        ready = list(sequences)
        while waiting := [sequence for sequence in ready if sequence.wanted is not None]:
            group = self._group(waiting)
            pieces = _pieces(group, len(sequences) == 1)
            for sequence, answer in self._evaluated(pieces):
                if isinstance(answer, MxconvError) or _wanted(sequence).took(pieces[sequence]):
                    yield from self._gone_on(sequence, answer)
                else:
                    ready.remove(sequence)
            ready = [sequence for sequence in ready if sequence not in group or sequence in pieces]

    def _loads(self, sequences: Listed[Sequence]) -> tuple[Load, Load]:
        """Loads of drafts' passes and of the target's, which evaluate prompts too."""
        decoding = sum(sequence.is_decoding for sequence in sequences)
        prompts = [sequence for sequence in sequences if not sequence.is_decoding]
        most = MOST_ROWS if len(sequences) == 1 else PROMPT_ROWS
        rows = sum(min(sequence.num_left_of_prompt, most) for sequence in prompts)
        return Load(max(decoding, 1)), Load(max(decoding, 1), min(rows, MOST_ROWS) if decoding else 0)

    def _group(self, waiting: Listed[Sequence]) -> list[Sequence]:
        """The sequences that wait for the cheapest model; what is no level's own decoder counts as cheaper."""
        depths = self._depths
        deepest = max((_wanted(each).model for each in waiting), key=lambda model: depths.get(model[0], len(depths)))
        return [sequence for sequence in waiting if _wanted(sequence).model == deepest]

    def _evaluated(self, pieces: dict[Sequence, Piece]) -> list[tuple[Sequence, Evaluated | MxconvError]]:
        """The answer for the rows of each sequence, or the error that it caused."""
        one = _wanted(next(iter(pieces)))
        begin = time.perf_counter()
        try:
            answers = one.evaluate(list(pieces.values()))
        except MxconvError as error:
            if len(pieces) == 1:
                return [(sequence, error) for sequence in pieces]
            # one of them is to blame, and the caches are as they were
            return [pair for sequence, rows in pieces.items() for pair in self._evaluated({sequence: rows})]
        seconds = time.perf_counter() - begin
        joint = JointPass(next(self._num_passes), sum(rows.num_rows for rows in pieces.values()), seconds)
        for sequence, rows in pieces.items():
            sequence.passes.share(rows.num_rows, joint)
        return list(zip(pieces, answers, strict=True))

    def _gone_on(
        self, sequence: Sequence, answer: Evaluated | MxconvError | None = None
    ) -> Iterator[tuple[Sequence, Step]]:
        """Let a round go on; it may be over then, or have failed."""
        try:
            step = sequence.go_on(answer)
        except PoolFull:
            sequence.set_back()  # others were faster to take what was left
        except MxconvError as raised:
            sequence.end(raised)
        except Exception as raised:
            found = ModelError(f"sequence: {type(raised).__name__} ({raised}) inside a round. Please report this.")
            found.__cause__ = raised
            sequence.end(found)
        else:
            if step is not None:
                yield sequence, step


def _wanted(sequence: Sequence) -> Any:
    """The rows that a sequence waits for, `WantedRows` or `WantedStage`: those of a group are all of one kind."""
    assert sequence.wanted is not None
    return sequence.wanted


def _pieces(group: Listed[Sequence], is_alone: bool) -> dict[Sequence, Piece]:
    """The rows of each that are evaluated now: short chains and trees whole, long ones as others can wait for."""
    pieces: dict[Sequence, Piece] = {}
    room, most = MOST_ROWS, MOST_ROWS if is_alone else PROMPT_ROWS
    for sequence in sorted(group, key=lambda sequence: _wanted(sequence).num_left > most):
        wanted = _wanted(sequence)
        if wanted.num_left <= most or room > 0:
            pieces[sequence] = wanted.next_rows(min(most, max(room, 1)))
            if wanted.num_left > most:
                room -= pieces[sequence].num_rows
    return pieces


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
        self.hierarchy = hierarchy
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

    @property
    def reads_ahead(self) -> bool:
        """Whether the target's passes wait for a disk."""
        return self.hierarchy.target.reads_ahead

    def submit(self, request: Request) -> Sequence:
        """Queue a request.

        Raises:
            ModelError: no prompt, one longer than the target's positions or than the budget allows, a token that the
                target does not have, in the prompt or with a bias, or no new tokens.
        """
        self.hierarchy.check(request)
        vocab_size = self.hierarchy.vocab_size
        if outside := [token for token in request.prompt if not 0 <= token < vocab_size]:
            raise ModelError(
                f"prompt: token id {outside[0]}; ids from 0 to {vocab_size - 1} are required. "
                "Use the tokenizer that belongs to the model."
            )
        if not self._budget.holds([len(request.prompt)]):
            raise self._too_long(len(request.prompt))
        self._waiting.append(Sequence(request, self.hierarchy, self._budget))
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


class Batch:
    """Prompts, texts or messages, that are decoded side by side; `kv_bytes` limits their caches, None does not."""

    def __init__(
        self,
        model: TextModel,
        prompts: Listed[Prompt],
        options: Options,
        max_sequences: int,
        kv_bytes: int | None = None,
        records_trees: bool = False,
    ) -> None:
        self.answers: list[Answer] = []
        hierarchy, fixed = model.hierarchy(options), model.request([], options)
        self._engine = Engine(hierarchy, max_sequences, kv_bytes)
        self._running: dict[Sequence, Answer] = {}
        for prompt in prompts:
            request = replace(fixed, prompt=model.encode(prompt))
            stream = model.text_stream(request, options)
            try:
                sequence = self._engine.submit(request)
            except ModelError as error:  # of this prompt: empty, or too long
                self.answers.append(Answer(prompt, hierarchy.begin(), stream, error=error))
                self.answers[-1].generation.ending = "error"
                continue
            sequence.generation.trace.records_trees = records_trees
            self.answers.append(Answer(prompt, sequence.generation, stream))
            self._running[sequence] = self.answers[-1]

    def run(self, on_done: Callable[[int], None]) -> None:
        """Decode all; `on_done` is called with the number of prompts done after each step that ended some.

        An interrupt may come at any moment, and what there is by then is whole.
        """
        while not self._engine.is_idle:
            for each in self._engine.step():
                answer = self._running[each.sequence]
                if not answer.stopped:
                    answer.take(each.token)
                    if answer.stopped:
                        self._engine.cancel(each.sequence)
            done = [sequence for sequence in self._running if sequence.is_done]
            for sequence in done:
                answer = self._running.pop(sequence)
                answer.error = sequence.error
                answer.finish()
            if done:
                on_done(len(self.answers) - len(self._running))
