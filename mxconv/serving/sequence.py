"""A request while it is answered: waiting, running round by round, or done."""

import time
from dataclasses import dataclass

from greenlet import GreenletExit, getcurrent, greenlet

from mxconv.arrays import F32
from mxconv.errors import MxconvError
from mxconv.serving.joint_passes import JointPasses
from mxconv.serving.kv_budget import KvBudget
from mxconv.serving.request import Request
from mxconv.serving.wanted import Answer, AnyWanted, Wanted
from mxconv.speculation.decoding import Decoding
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.step import Step


class Sequence:
    """One request and what became of it so far.

    A round of it runs in a greenlet of its own, which waits wherever rows are to be evaluated.

    Args:
        request: what is wanted.
        hierarchy: that decodes it.
        budget: where its caches come from.
    """

    def __init__(self, request: Request, hierarchy: Hierarchy, budget: KvBudget) -> None:
        self.request = request
        self.generation = hierarchy.begin()
        self.error: MxconvError | None = None
        self.is_done = False
        self.wanted: AnyWanted | None = None  # what its round waits for
        self._hierarchy = hierarchy
        self._acceptance = request.selection.acceptance(len(request.prompt))
        self._budget = budget
        self._passes = JointPasses(budget)
        self._decoding: Decoding | None = None
        self._round: greenlet | None = None
        self._begun_at: float | None = None

    @property
    def context(self) -> list[int]:
        """All its tokens: the prompt and what was decided."""
        return [*self.request.prompt, *self.generation.token_ids]

    @property
    def num_tokens(self) -> int:
        """Of the prompt and what was decided."""
        return len(self.request.prompt) + len(self.generation.token_ids)

    @property
    def is_decoding(self) -> bool:
        """Whether its next round is one behind a prompt that the target has evaluated."""
        return self._round is None and self._decoding is not None and not self._decoding.is_prompt

    @property
    def num_left_of_prompt(self) -> int:
        """Rows that are to be evaluated before it decodes."""
        return self.num_tokens if self.wanted is None else self.wanted.num_left

    @property
    def passes(self) -> JointPasses:
        return self._passes

    @property
    def is_in_round(self) -> bool:
        """Whether a round has begun that is not over."""
        return self._round is not None

    def go_on(self, answer: Answer | None = None) -> Step | None:
        """Begin a round, or go on with what it waited for; what it decided, or None where it waits again.

        Raises:
            MxconvError: what went wrong inside; the round is over.
        """
        if self._round is None:
            if self._begun_at is None:
                self._begun_at = time.perf_counter()
            if self._decoding is None:
                self._decoding = self._begun_again()
            self._round = greenlet(self._decoding.round)
        return self._until_it_waits(self._passes.run(self._round, answer))

    def fail(self, error: MxconvError) -> Step | None:
        """Throw an error where the round waits: what came of it, as of `go_on`."""
        assert self._round is not None
        return self._until_it_waits(self._passes.fail(self._round, error))

    def take(self, step: Step) -> None:
        """The tokens of a round that is over."""
        assert self._decoding is not None and self._begun_at is not None
        generation = self.generation
        generation.seconds = time.perf_counter() - self._begun_at
        if not generation.token_ids:
            generation.prompt_seconds = generation.seconds
        generation.token_ids += step.tokens
        if self._decoding.ending is not None:
            generation.ending = self._decoding.ending
            self.end()

    def set_back(self) -> None:
        """Give up all caches, and a round that has begun; the tokens stay, and the next round begins with them."""
        if self._round is not None and not self._round.dead:
            self._round.parent = getcurrent()
            self._round.throw(GreenletExit)
        self._round = self._decoding = self.wanted = None
        self._passes.release()
        self._passes = JointPasses(self._budget)

    def end(self, error: MxconvError | None = None) -> None:
        """It is done: with what its generation says, or with an error."""
        self.error = self.error or error
        if self.error is not None:
            self.generation.ending = "error"
        self.is_done = True
        self.set_back()

    def _until_it_waits(self, came: object) -> Step | None:
        if isinstance(came, Wanted):
            self.wanted = came
            return None
        self._round = self.wanted = None
        assert isinstance(came, Step)
        return came

    def _begun_again(self) -> Decoding:
        """From the tokens that there are."""
        request, max_length = self.request, len(self.request.prompt) + self.request.max_new_tokens
        return self._hierarchy.decoding(
            self.context, max_length, request.stop_tokens, self._acceptance, self.generation, self._passes
        )


@dataclass(frozen=True, eq=False)
class Decided:
    """One token of one sequence.

    Args:
        sequence: whose.
        token: its id.
        logits: (vocab_size,) float32: the target's, that chose it.
        guessed_by: the level whose guess it was; None where the target said it itself.
    """

    sequence: Sequence
    token: int
    logits: F32
    guessed_by: str | None


def decided(sequence: Sequence, step: Step) -> list[Decided]:
    """The tokens of a round: guesses that stand, and the target's own behind them."""
    return [
        Decided(sequence, token, logits, name)
        for token, logits, name in zip(step.tokens, step.logits, step.guessed_by, strict=True)
    ]
