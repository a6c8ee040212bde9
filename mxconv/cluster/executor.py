"""Tasks and streams on a Ray cluster: an `Executor` of `mxconv.workers`."""

from collections.abc import Callable, Sequence

from mxconv.cluster.batches import Batches
from mxconv.cluster.crew import Crew
from mxconv.cluster.member import Member
from mxconv.cluster.sent_stream import SentStream
from mxconv.workers import Advance, Piece, Result, Stream, Task, uncounted

AHEAD = 2  # calls a worker that are sent: one is done, one is there when it ends


class RayExecutor:
    """The workers of a cluster, for one conversion or proof."""

    def __init__(self, crew: Crew) -> None:
        """Of a crew that works for nobody else; what it still does for another one is not told any more."""
        crew.forget()
        self._crew = crew
        self._streams: list[SentStream] = []

    @property
    def num_workers(self) -> int:
        """Processors that the cluster has now; nodes may come and go."""
        return self._crew.num_processors

    def add_stream(self, stream: Stream) -> None:
        """Have a worker carry this on, too."""
        self._streams.append(SentStream(self._crew, stream))

    def map(
        self,
        task: Task[Piece, Result],
        pieces: Sequence[Piece],
        advance: Advance = uncounted,
        done: Callable[[Result], None] | None = None,
    ) -> list[Result]:
        """Do a task to every piece, see `Executor.map`."""
        batches = Batches(self._crew, task, pieces, advance, done)
        while not batches.are_done:
            self._feed(batches)
            self._crew.wait()
            self._check_streams()
        while batches.errors and self._crew.has_calls_in_time:  # one of an earlier piece is the one that counts
            self._crew.wait()
        return batches.results()

    def finish_streams(self) -> None:
        """Have workers carry the streams on to their ends."""
        nothing: Batches[None, None] = Batches(self._crew, _nothing, [], uncounted, None)
        while not all(stream.is_finished for stream in self._streams):
            self._feed(nothing)
            ready = any(stream.is_ready() for stream in self._streams)
            assert ready or self._crew.has_calls, "a stream waits for nothing"
            self._crew.wait()
            self._check_streams()
        self._streams.clear()

    def _feed(self, batches: Batches[Piece, Result]) -> None:
        """Send to every worker what it does next, and behind that, while there is much, what comes then."""
        num_workers = max(self._crew.num_ready, 1)
        depth = AHEAD if batches.num_left > AHEAD * num_workers else 1
        is_idle = False
        for member in self._crew.ready(depth):
            # half of the workers at least read tensors, while the file is in the page cache
            if self._num_carried < max(1, num_workers // 2) and (stream := self._stream_for(member)):
                stream.send(member)
            elif batches.num_left:
                batches.send(member)
            elif stream := self._stream_for(member):
                stream.send(member)
            elif not member.calls:
                is_idle = True
        if is_idle and self._crew.hand_over():
            self._feed(batches)

    @property
    def _num_carried(self) -> int:
        return sum(stream.is_running for stream in self._streams)

    def _stream_for(self, member: Member) -> SentStream | None:
        """The first stream that a worker can carry on now."""
        return next((s for s in self._streams if s.is_ready() and s.is_for(member)), None)

    def _check_streams(self) -> None:
        """Raise the error of one."""
        for stream in self._streams:
            if stream.error is not None:
                raise stream.error


def _nothing(_: None, __: Advance) -> None:
    """The task of no pieces."""
