"""What the engine's thread says of sequences, and who hears it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mxconv.drafts.statistics import LevelStatistics
from mxconv.serving.http.logprobs import TokenLogprobs, token_logprobs
from mxconv.serving.sequence import Decided, Sequence


@dataclass(frozen=True)
class NewToken:
    """A token that the target decided; `guessed_by` names the level that had proposed it."""

    token: int
    guessed_by: str | None
    logprobs: TokenLogprobs | None


@dataclass(frozen=True)
class LevelCount:
    """What a level proposed to the one above so far, and what stood."""

    name: str
    num_proposed: int
    num_accepted: int


@dataclass(frozen=True)
class Update:
    """What a step did to one sequence.

    Args:
        tokens: in order; none where it only ended.
        ending: why there will be no more: "stop", "length" or "error"; None while there may be.
        error: what went wrong, with the ending "error".
        is_refusal: whether the request was to blame.
        levels: counts of all drafts; empty where nobody asks.
    """

    tokens: list[NewToken] = field(default_factory=list)
    ending: str | None = None
    error: str = ""
    is_refusal: bool = False
    levels: list[LevelCount] = field(default_factory=list)


@dataclass(eq=False)
class Watcher:
    """Who wants to hear of a sequence, and what. `hear` is called in the event loop."""

    hear: Callable[[Update], None]
    num_logprobs: int | None = None
    wants_trace: bool = False


def new_token(decided: Decided, watcher: Watcher) -> NewToken:
    """As its watcher wants it."""
    logprobs = None
    if watcher.num_logprobs is not None:
        logprobs = token_logprobs(decided.logits, decided.token, watcher.num_logprobs)
    return NewToken(decided.token, decided.guessed_by, logprobs)


def update_of(sequence: Sequence, tokens: list[NewToken], wants_trace: bool) -> Update:
    """What a step that decided these tokens did."""
    levels = [_count(level) for level in sequence.generation.trace.statistics[1:]] if wants_trace else []
    if not sequence.is_done:
        return Update(tokens, levels=levels)
    if sequence.error is not None:
        return Update(tokens, "error", str(sequence.error), levels=levels)
    return Update(tokens, sequence.generation.ending, levels=levels)


def _count(level: LevelStatistics) -> LevelCount:
    return LevelCount(level.name, level.num_proposed, level.num_accepted)
