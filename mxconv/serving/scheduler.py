"""One step of several sequences: a round of each, every pass over the weights for all that wait for it."""

import time
from collections.abc import Iterator
from collections.abc import Sequence as Listed
from itertools import count
from typing import Any

from mxconv.engine.decoder import Decoder
from mxconv.errors import ModelError, MxconvError, PoolFull
from mxconv.serving.joint_passes import PROMPT_ROWS, Answer, Piece
from mxconv.serving.sequence import Sequence
from mxconv.speculation.passes import JointPass, Load
from mxconv.speculation.statistics import Step

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

    def _evaluated(self, pieces: dict[Sequence, Piece]) -> list[tuple[Sequence, Answer | MxconvError]]:
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
        self, sequence: Sequence, answer: Answer | MxconvError | None = None
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
