"""What a worker is asked for, and what becomes of it."""

from typing import Any, Protocol

from mxconv.errors import MxconvError

MAX_RETRIES = 8  # of what was with a worker that is gone


class Job(Protocol):
    """What a worker was asked for."""

    @property
    def patience(self) -> float:
        """Seconds after which a worker is late with it."""
        ...

    def take(self, outcome: Any) -> None:
        """It is done."""
        ...

    def give_back(self, cause: str) -> None:
        """The worker is gone; somebody else has to do it."""
        ...

    def hand_over(self) -> bool:
        """The worker is late; somebody else may do it, too. False where that is so already, or cannot be."""
        ...


def lost_too_often(cause: str) -> MxconvError:
    """The error of a job that was with many workers that are gone."""
    return MxconvError(
        f"--workers ray: a piece of work was lost {MAX_RETRIES + 1} times ({cause}); workers that stay alive are "
        "required. Look at the memory of the nodes (--memory), and run the same command again: it goes on where it "
        "stopped."
    )


def name_of(subject: Any) -> str:
    """What Ray's dashboard shows of a task, a piece or a stream."""
    name = getattr(subject, "name", None) or getattr(subject, "__name__", None)
    return name if isinstance(name, str) else type(subject).__name__
