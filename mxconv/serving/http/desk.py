"""Where requests come in: so many at a time, each a call with its choices, freed as soon as nobody wants it."""

import math

from mxconv.serving.http.call import Call
from mxconv.serving.http.engine_thread import EngineThread
from mxconv.serving.http.errors import OVERLOADED, SERVER, ApiError, shutting_down
from mxconv.serving.http.job import Job
from mxconv.text.tokenizer import Tokenizer

LONGEST_RETRY = 60  # seconds


class Desk:
    """Admits calls; used in the event loop alone.

    Args:
        thread: decodes.
        tokenizer: the target's.
        max_sequences: that decode at a time.
        max_queue: that may wait.
    """

    def __init__(self, thread: EngineThread, tokenizer: Tokenizer, max_sequences: int, max_queue: int) -> None:
        self.thread = thread
        self.tokenizer = tokenizer
        self.capacity = max_sequences + max_queue
        self.num_open = 0  # sequences
        self.closes = False
        self._max_sequences = max_sequences
        self._calls: set[Call] = set()
        self._seconds = 1.0  # a sequence takes, smoothed

    def admit(self, job: Job, shown: list[str]) -> Call:
        """A call for a job, to be used as a context manager.

        Args:
            job: what to decode.
            shown: what the text of each prompt's choices begins with.

        Raises:
            ApiError: there is no room, or never will be.
        """
        if self.closes:
            raise shutting_down()
        if self.thread.failure is not None:
            raise ApiError(503, f"The engine failed ({self.thread.failure}). Start the server again.", SERVER)
        if job.num_sequences > self.capacity:
            raise ApiError(
                400,
                f"n: {job.num_sequences} sequences (n times the prompts); at most {self.capacity} fit in this server. "
                "Send several requests.",
                param="n",
            )
        if self.num_open + job.num_sequences > self.capacity:
            raise ApiError(
                429,
                f"{self.num_open} sequences are decoded or wait; {self.capacity} are the most. Ask again later.",
                OVERLOADED,
                code="queue_full",
                headers={"Retry-After": str(self._retry_after(job.num_sequences))},
            )
        return Call(self, job, shown)

    def close(self) -> None:
        """Take no more calls."""
        self.closes = True

    def break_off(self) -> None:
        """End the calls that still run with an error."""
        for call in list(self._calls):
            call.fail(shutting_down())

    def opened(self, call: Call) -> None:
        self._calls.add(call)
        self.num_open += len(call.choices)

    def closed(self, call: Call, seconds: float) -> None:
        self._calls.discard(call)
        self.num_open -= len(call.choices)
        self._seconds += (seconds - self._seconds) / 8

    def _retry_after(self, num_sequences: int) -> int:
        """Seconds until so many have probably ended."""
        rounds = math.ceil(num_sequences / self._max_sequences)
        return max(1, min(LONGEST_RETRY, math.ceil(rounds * self._seconds)))
