"""What theory makes of a measured run, by two equations, each applied again to every draft that has its own draft.

    Leviathan (arXiv 2211.17192)    E = mean over rounds of (1 - a^(n+1)) / (1 - a)     tokens a round
                                    T = (N T' + V) / E                                  seconds a token
    ML-SpecQD (2503.13565, Eq. (1)) T = (N T' + P) / (G + 1)                            that is, (1 + N/S) / (G + 1)
    speed-up                        P / T of the target

    a    share of the draft's tokens that were accepted, among those whose predecessors in the round were
    G    tokens that were accepted in a round, on average
    n    tokens that the draft proposed in a round of the level above, 0 where it had none; N is their mean
    T'   seconds a token of the draft: T of that level, as measured where it has no draft
    V    seconds of the level's pass over what was proposed
    P    seconds of the level's pass over one token, of the target in plain decoding

V and P are means over the run, in which no pass counts for more than three medians: it was interrupted.

A draft that always proposes as many tokens as it is asked for makes the first the printed equation. One that stops
where its confidence falls, or a look-up that finds nothing, proposes fewer: what it did propose counts, round by round.
The ideal speed-up takes P for V in it, and likewise further down, as if to verify many tokens took no longer than one.
ML-SpecQD's takes the tokens as they came, so it leaves out what verification costs beyond one plain pass, and no more.

What no pass contains is left out: the prompt, what drafts with a cache of their own must catch up on, and the time
between passes. So the measured speed-up, compared with this one, says what the machinery costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from mxconv.cost.speedup import expected_tokens
from mxconv.speculation.statistics import Trace, TraceEntry

MOST_MEDIANS = 3  # that a pass counts for


@dataclass(frozen=True)
class LevelTiming:
    """One level of a run, behind the prompts.

    Args:
        name: of the level.
        pass_seconds: of one of its passes, whatever its width; of one look-up.
        num_passes: of these.
        lengths: how many of its proposals had so many tokens; empty ones are not listed.
        acceptance: a, 0 where nothing was judged.
        num_accepted: of its tokens, by the level above.
    """

    name: str
    pass_seconds: float
    num_passes: int
    lengths: Mapping[int, int]
    acceptance: float
    num_accepted: int = 0

    @property
    def num_proposed(self) -> int:
        return sum(length * count for length, count in self.lengths.items())


def timings_of(traces: Sequence[Trace]) -> list[LevelTiming]:
    """The levels of one strategy, the target first, over all its prompts; the prompts' own rounds do not count."""
    timings = []
    num_levels = len(traces[0].statistics)
    for index in range(num_levels):
        entries = [entry for trace in traces for entry in trace.entries[index::num_levels] if entry.round > 0]
        num_judged = sum(trace.statistics[index].num_judged for trace in traces)
        num_accepted = sum(trace.statistics[index].num_accepted for trace in traces)
        timings.append(
            LevelTiming(
                name=traces[0].statistics[index].name,
                pass_seconds=_pass_seconds(entries),
                num_passes=sum(entry.num_forwards for entry in entries),
                lengths=_lengths([trace.statistics[index].proposed_by_position for trace in traces]),
                acceptance=num_accepted / num_judged if num_judged else 0.0,
                num_accepted=num_accepted,
            )
        )
    return timings


def predicted_speedup(
    timings: Sequence[LevelTiming], plain_seconds: float, ideal: Mapping[str, float] | None = None
) -> float | None:
    """By Leviathan's equation.

    Args:
        timings: of the run.
        plain_seconds: P.
        ideal: seconds of a pass over one token, by name of the level, to take for V; None takes those measured.

    Returns:
        None where there is no draft, or one that proposed nothing, or nothing was decoded behind the prompts.
    """
    if not plain_seconds or not _is_complete(timings):
        return None
    return plain_seconds / _seconds_a_token(timings, ideal or {})


def ml_specqd_speedup(timings: Sequence[LevelTiming], plain_seconds: Mapping[str, float]) -> float | None:
    """By ML-SpecQD's Eq. (1).

    Args:
        timings: of the run.
        plain_seconds: P of each level that has a draft, by its name; one that is missing takes V.

    Returns:
        None as `predicted_speedup`.
    """
    top = timings[0].name
    if not plain_seconds.get(top) or not _is_complete(timings):
        return None
    return plain_seconds[top] / _round_seconds_a_token(timings, plain_seconds)


def _is_complete(timings: Sequence[LevelTiming]) -> bool:
    """Whether there is a draft, every level made passes and every draft proposed something."""
    drafts = timings[1:]
    return bool(drafts) and all(t.num_passes for t in timings) and all(t.num_proposed for t in drafts)


def _round_seconds_a_token(timings: Sequence[LevelTiming], plain_seconds: Mapping[str, float]) -> float:
    """T of the first level, by ML-SpecQD."""
    top, *drafts = timings
    if not drafts:
        return _seconds_a_token(timings, {})
    drafting = drafts[0].num_proposed * _round_seconds_a_token(drafts, plain_seconds)
    verifying = top.num_passes * plain_seconds.get(top.name, top.pass_seconds)
    return (drafting + verifying) / (drafts[0].num_accepted + top.num_passes)


def _seconds_a_token(timings: Sequence[LevelTiming], ideal: Mapping[str, float]) -> float:
    """T of the first level."""
    top, *drafts = timings
    if not drafts:  # a token is a pass, but for look-ups and drafts with another tokenizer
        return top.pass_seconds * top.num_passes / top.num_proposed
    draft = drafts[0]
    num_empty = max(top.num_passes - sum(draft.lengths.values()), 0)
    num_tokens = num_empty + sum(count * expected_tokens(draft.acceptance, n) for n, count in draft.lengths.items())
    draft_seconds = draft.num_proposed * _seconds_a_token(drafts, ideal)
    return (draft_seconds + top.num_passes * ideal.get(top.name, top.pass_seconds)) / num_tokens


def _pass_seconds(entries: Sequence[TraceEntry]) -> float:
    """The mean, interruptions cut short; 0 without passes."""
    passes = [(entry.seconds / entry.num_forwards, entry.num_forwards) for entry in entries if entry.num_forwards]
    if not passes:
        return 0.0
    longest = MOST_MEDIANS * median(seconds for seconds, _ in passes)
    return sum(min(seconds, longest) * number for seconds, number in passes) / sum(number for _, number in passes)


def _lengths(proposed_by_position: Sequence[Sequence[int]]) -> dict[int, int]:
    """From proposals with a token at each place to proposals of each length."""
    found: dict[int, int] = {}
    for counts in proposed_by_position:
        for place, (here, beyond) in enumerate(zip(counts, [*counts, 0][1:], strict=True), 1):
            found[place] = found.get(place, 0) + here - beyond
    return found
