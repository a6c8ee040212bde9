"""What theory makes of a measured run: ML-SpecQD Eq. (1), applied again to every draft that has a draft of its own.

    tokens a round      E = (1 - a^(n+1)) / (1 - a)
    seconds a token     T = (n T' + V) / E          of a level with a draft; without one, as measured
    speed-up            S = P / T                   of the target

    a    share of the draft's tokens that were accepted, among those whose predecessors in the round were
    n    tokens that the draft proposed, the mean over rounds of the level above
    T'   seconds a token of the draft: T of that level
    V    seconds of the level's pass over what was proposed, the median over the run
    P    seconds of the target's pass in plain decoding, the median

A draft that stops where its confidence falls proposes fewer tokens than it was asked for. It is the mean number that
it did propose which counts, as SPEQ (arXiv 2510.18525) has it for early exit: E is concave in n, so a mean length
promises a little more than a mixture of lengths gives, while stopping at the right token gives a little more than
tokens that are accepted independently. The ideal speed-up takes P for V, and likewise further down: as if to verify
many tokens took no longer than to evaluate one.

What no pass contains is left out: the prompt, what drafts with a cache of their own must catch up on, and the time
between passes. So the measured speed-up, compared with this one, says what the machinery costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mxconv.speculative.statistics import Trace


@dataclass(frozen=True)
class LevelTiming:
    """One level of a run, behind the prompts.

    Args:
        name: of the level.
        pass_seconds: of one of its passes, whatever its width; of one look-up.
        num_passes: of these.
        num_proposed: tokens, to the level above.
        acceptance: a, 0 where nothing was judged.
    """

    name: str
    pass_seconds: float
    num_passes: int
    num_proposed: int
    acceptance: float


def timings_of(traces: Sequence[Trace]) -> list[LevelTiming]:
    """The levels of one strategy, the target first, over all its prompts; the prompts' own rounds do not count."""
    timings = []
    num_levels = len(traces[0].statistics)
    for index in range(num_levels):
        entries = [entry for trace in traces for entry in trace.entries[index::num_levels] if entry.round > 0]
        passes = [entry.seconds / entry.num_forwards for entry in entries if entry.num_forwards]
        num_judged = sum(trace.statistics[index].num_judged for trace in traces)
        num_accepted = sum(trace.statistics[index].num_accepted for trace in traces)
        timings.append(
            LevelTiming(
                name=traces[0].statistics[index].name,
                pass_seconds=median(passes) if passes else 0.0,
                num_passes=sum(entry.num_forwards for entry in entries),
                num_proposed=sum(entry.num_proposed for entry in entries),
                acceptance=num_accepted / num_judged if num_judged else 0.0,
            )
        )
    return timings


def predicted_speedup(
    timings: Sequence[LevelTiming], plain_seconds: float, ideal: Mapping[str, float] | None = None
) -> float | None:
    """S of the equation above.

    Args:
        timings: of the run.
        plain_seconds: P.
        ideal: seconds of a pass over one token, by name of the level, to take for V; None takes those measured.

    Returns:
        None where there is no draft, or one that proposed nothing, or nothing was decoded behind the prompts.
    """
    if len(timings) < 2 or not plain_seconds or not all(t.num_passes for t in timings):
        return None
    if not all(timing.num_proposed for timing in timings[1:]):
        return None
    return plain_seconds / _seconds_a_token(timings, ideal or {})


def _seconds_a_token(timings: Sequence[LevelTiming], ideal: Mapping[str, float]) -> float:
    """T of the first level."""
    top, *drafts = timings
    if not drafts:  # a token is a pass, but for look-ups and drafts with another tokenizer
        return top.pass_seconds * top.num_passes / top.num_proposed
    n, a = drafts[0].num_proposed / top.num_passes, drafts[0].acceptance
    tokens = n + 1 if a == 1 else (1 - a ** (n + 1)) / (1 - a)
    return (n * _seconds_a_token(drafts, ideal) + ideal.get(top.name, top.pass_seconds)) / tokens
