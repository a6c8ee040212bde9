"""The sequence that answers a request: waiting, running round by round, or done."""

import time

from greenlet import GreenletExit, getcurrent, greenlet

from mxconv.errors import MxconvError
from mxconv.serving.joint_passes import Evaluated, JointPasses, KvBudget, Wanted
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.round import Decoding
from mxconv.speculation.selection import Request
from mxconv.speculation.statistics import Step


class Sequence:
    """One request and its tokens so far.

    Each round runs in a greenlet of its own, which waits wherever rows are to be evaluated.
    """

    def __init__(self, request: Request, hierarchy: Hierarchy, budget: KvBudget) -> None:
        self.request = request
        self.generation = hierarchy.begin()
        self.error: MxconvError | None = None
        self.is_done = False
        self.wanted: Wanted | None = None  # what its round waits for
        self.passes = JointPasses(budget)
        self._hierarchy = hierarchy
        self._acceptance = request.acceptance()
        self._budget = budget
        self._decoding: Decoding | None = None
        self._round: greenlet | None = None
        self._begun_at: float | None = None

    @property
    def context(self) -> list[int]:
        """The prompt and the tokens that were decided."""
        return [*self.request.prompt, *self.generation.token_ids]

    @property
    def num_tokens(self) -> int:
        """Length of the context."""
        return len(self.request.prompt) + len(self.generation.token_ids)

    @property
    def is_decoding(self) -> bool:
        """Whether the target has evaluated its prompt, and no round has begun."""
        return self._round is None and self._decoding is not None and not self._decoding.is_prompt

    @property
    def num_left_of_prompt(self) -> int:
        """Rows that are to be evaluated before it decodes."""
        return self.num_tokens if self.wanted is None else self.wanted.num_left

    def go_on(self, answer: Evaluated | MxconvError | None = None) -> Step | None:
        """Begin a round, or continue it with what it waited for, or with an error there.

        Returns:
            What it decided, or None where it waits again.

        Raises:
            MxconvError: what went wrong inside; the round is over.
        """
        if self._round is None:
            if self._begun_at is None:
                self._begun_at = time.perf_counter()
            if self._decoding is None:
                fixed = self.request, self.generation, self._acceptance, self.passes
                self._decoding = self._hierarchy.decoding(*fixed)
            self._round = greenlet(self._decoding.round)
        found = self.passes.run(self._round, answer)
        if isinstance(found, Wanted):
            self.wanted = found
            return None
        self._round = self.wanted = None
        assert isinstance(found, Step)
        return found

    def take(self, step: Step) -> None:
        """Append the tokens of a round that is over."""
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
        self.passes.release()
        self.passes = JointPasses(self._budget)

    def end(self, error: MxconvError | None = None) -> None:
        """End it with the ending of its generation, or with an error."""
        self.error = self.error or error
        if self.error is not None:
            self.generation.ending = "error"
        self.is_done = True
        self.set_back()
