"""Decoding in simulated time, of one text and of several side by side: what a pace is told, and what a run costs."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mxconv.engine.tree import TreeLimits
from mxconv.speculation.pace import PLAIN, Choice, Outcome, Pace
from mxconv.speculation.passes import ALONE, JointPass, Load

CERTAIN, CONFIDENCE = 0.98, 0.4


@dataclass(frozen=True)
class SimulatedDraft:
    """Seconds and chances of one draft; a plain pass of the level takes one second."""

    acceptance: float  # of a proposed token after accepted ones
    seconds: float  # a proposed token
    keeps_on: float = 1.0  # chance to propose a further token
    starts: float = 1.0  # chance to propose any
    catch_up_seconds: float = 0.0  # for each token that it has missed
    at_once: bool = False  # those seconds are of a whole proposal
    num_certain: float | None = None  # of its tokens this share has a chance of .98; None: it knows no chances

    def expected_rate(self, num_tokens: int, slope: float) -> float:
        """Tokens a second, in the long run, of always asking for `num_tokens`."""
        proposed = accepted = 0.0
        reached = right = self.starts
        for _ in range(num_tokens):
            right *= self.acceptance
            proposed, accepted = proposed + reached, accepted + right
            reached, right = reached * self.keeps_on, right * self.keeps_on
        units = float(self.at_once) or proposed + 1 - self.starts  # a draft that says nothing has thought as long
        asked = self.seconds * units
        return (1 + accepted) / (asked + 1 + slope * proposed)

    def chances(self, random: np.random.Generator, count: int) -> list[float]:
        """True chances of so many tokens, with the mean `acceptance`."""
        if self.num_certain is None:
            return [self.acceptance] * count
        other = (self.acceptance - CERTAIN * self.num_certain) / (1 - self.num_certain)
        return [CERTAIN if random.random() < self.num_certain else other for _ in range(count)]

    def num_proposed(self, limits: TreeLimits, chances: list[float]) -> int:
        """Tokens of a chain within limits: it ends after one whose path is not likely enough, or that is in doubt."""
        path, floors = 1.0, [*limits.floors[1:], 1.0]
        for count, (chance, floor) in enumerate(zip(chances, floors, strict=False), 1):
            path *= chance
            if chance < CONFIDENCE if limits.least_sum is None else path < floor:
                return count
        return min(len(chances), len(limits.floors))


@dataclass
class SimulatedMachine:
    """Rounds of a level with some drafts."""

    drafts: list[SimulatedDraft]  # that it may ask
    slope: float = 0.03  # seconds of a pass for each token beyond the first
    curve: tuple[float, ...] = ()  # seconds of passes of 1, 2, 4, 8, ... rows, in place of the slope
    noise: float = 0.0  # standard deviation of the logarithm of every time that the pace is told
    seed: int = 0  # of all chances
    speed: float = 1.0
    disturbed: float = 0.0  # seconds at the start in which each round is told as up to three times as long
    seconds: float = 0.0  # without noise or disturbance, as if `speed` were 1
    num_tokens: int = 0
    choices: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._missed = [0] * len(self.drafts)

    def run(self, pace: Pace, num_tokens: int, prompt: int = 20) -> None:
        """One generation; the prompt goes through the level alone and is not counted."""
        end = self.num_tokens + num_tokens
        self._disturb()
        pace.learn(PLAIN, Outcome(0, 0, prompt, 0.0, self._told(0.2 * prompt)))
        self._missed = [prompt] * len(self.drafts)
        self.num_tokens += 1
        while self.num_tokens < end:
            limit = end - self.num_tokens - 1
            self.round(pace, pace.choose(limit, ALONE, [each - 1 for each in self._missed]) if limit else PLAIN)

    def round(self, pace: Pace, choice: Choice) -> None:
        self._disturb()
        proposed, accepted, draft_seconds = 0, 0, 0.0
        if choice.num_tokens:
            draft = self.drafts[choice.draft]
            if self._random.random() < draft.starts:
                proposed = 1
                while proposed < choice.num_tokens and self._random.random() < draft.keeps_on:
                    proposed += 1
                chances = draft.chances(self._random, proposed)
                if draft.num_certain is not None:
                    proposed = draft.num_proposed(choice.limits, chances)
                while accepted < proposed and self._random.random() < chances[accepted]:
                    accepted += 1
            missed = self._missed[choice.draft]
            draft_seconds = draft.seconds * (1 if draft.at_once else max(proposed, 1)) + draft.catch_up_seconds * max(
                missed - 1, 0
            )
        level_seconds = 1 + self.slope * proposed
        if self.curve:
            level_seconds = float(np.interp(1 + proposed, 2.0 ** np.arange(len(self.curve)), self.curve))
        self._missed = [missed + 1 + accepted for missed in self._missed]
        if choice.num_tokens:
            self._missed[choice.draft] = 1
        self.choices.append(choice)
        self.seconds += draft_seconds + level_seconds
        self.num_tokens += 1 + accepted
        told = self._told(draft_seconds), self._told(level_seconds)
        pace.learn(choice, Outcome(proposed, accepted, 1 + proposed, *told))

    def best_rate(self) -> float:
        """Of all fixed choices, no draft among them."""
        rates = [draft.expected_rate(n, self.slope) for draft in self.drafts for n in range(1, 17)]
        return max(1.0, *rates)

    def _told(self, seconds: float) -> float:
        return seconds / self.speed * self._slower * float(np.exp(self.noise * self._random.standard_normal()))

    def _disturb(self) -> None:
        self._slower = self._random.uniform(1, 3) if self.seconds < self.disturbed else 1.0


Price = Callable[[int], float]  # rows of a pass to seconds


def roofline(rows_for_nothing: int) -> Price:
    """A second while memory is the limit, and beyond so many rows as much as they are more."""
    return lambda rows: max(1.0, rows / rows_for_nothing) + 0.004 * rows


@dataclass
class SimulatedBatch:
    """Steps of a target with one draft, all texts in lockstep."""

    price: Price  # of the target's passes
    draft_share: float  # of that price: the draft's passes
    acceptance: float  # the chance of a proposed token after accepted ones
    noise: float = 0.0  # standard deviation of the logarithm of every time that the pace is told
    seed: int = 0  # of all chances
    prompt_tokens: int = 0  # that the draft has not seen of a text when it is first asked
    seconds: float = 0.0
    num_tokens: int = 0
    asked: list[int] = field(default_factory=list)  # of each text and step
    num_passes: int = 0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def run(self, paces: list[Pace], num_steps: int, other_rows: int = 0, num_read: int = 0) -> float:
        """Tokens for the time that a plain token takes, over some steps of as many texts as there are paces; of the
        first ones the draft has read the prompts."""
        begin, before = self.seconds, self.num_tokens
        self._missed = {id(pace): self.prompt_tokens * (number >= num_read) for number, pace in enumerate(paces)}
        for _ in range(num_steps):
            self._step(paces, Load(len(paces), other_rows), [100] * len(paces))
        plain = self.price(len(paces) + other_rows) / len(paces)
        return (self.num_tokens - before) / (self.seconds - begin) * plain

    def decode(self, paces: list[Pace], num_new: int) -> float:
        """How many times as fast as plainly so many tokens of each text come, the last one's too."""
        begin, left = self.seconds, {id(pace): num_new for pace in paces}
        self._missed = {id(pace): self.prompt_tokens for pace in paces}
        while running := [pace for pace in paces if left[id(pace)]]:
            counts = self._step(running, Load(len(running)), [left[id(pace)] for pace in running])
            for pace, count in zip(running, counts, strict=True):
                left[id(pace)] -= min(count, left[id(pace)])
        return num_new * self.price(len(paces)) / (self.seconds - begin)

    def _step(self, paces: list[Pace], load: Load, limits: list[int]) -> list[int]:
        """Tokens of each text."""
        choices = [
            pace.choose(limit, load, [max(self._missed[id(pace)] - 1, 0)])
            for pace, limit in zip(paces, limits, strict=True)
        ]
        missed, counts = [self._missed[id(pace)] for pace in paces], []
        wanted = [choice.num_tokens for choice in choices]
        self.asked += wanted
        told, noise = [0.0] * len(paces), float(np.exp(self.noise * self._random.standard_normal()))
        whole = [0.0] * len(paces)
        for depth in range(max(wanted)):
            drafting = [text for text, most in enumerate(wanted) if most > depth]
            rows = {text: 1 if depth else max(missed[text], 1) for text in drafting}
            took = self.draft_share * self.price(sum(rows.values()))
            self.seconds += took
            for text in drafting:
                told[text] += took * noise * rows[text] / sum(rows.values())
                whole[text] += took * noise
        num_rows = sum(wanted) + len(paces) + load.other_rows
        took = self.price(num_rows)
        self.seconds += took
        self.num_passes += 1
        joint = JointPass(self.num_passes, num_rows, took * noise)
        for text, (pace, choice) in enumerate(zip(paces, choices, strict=True)):
            accepted = 0
            while accepted < wanted[text] and self._random.random() < self.acceptance:
                accepted += 1
            counts.append(1 + accepted)
            self._missed[id(pace)] = 0 if wanted[text] else missed[text] + (self.prompt_tokens > 0)
            share = took * noise * (1 + wanted[text]) / num_rows
            sharers = whole[text] / told[text] if told[text] else load.num_texts
            pace.learn(
                choice,
                Outcome(wanted[text], accepted, 1 + wanted[text], told[text], share, 0, load, joint, sharers),
            )
        self.num_tokens += sum(counts)
        return counts

    def best(self, num_texts: int) -> tuple[float, int]:
        """Of all fixed lengths the most tokens for the time of a plain one, and that length; 0 is none."""
        plain = self.price(num_texts)
        rates = []
        for length in range(17):
            tokens = sum(self.acceptance**depth for depth in range(length + 1))
            seconds = self.price(num_texts * (1 + length)) + length * self.draft_share * self.price(num_texts)
            rates.append((tokens * plain / seconds, -length))
        rate, length = max(rates)
        return rate, -length


def texts(pace: Pace, count: int, prompt_tokens: int = 20, seconds: float = 4.0) -> list[Pace]:
    """Paces of so many texts after their prompts, and what the level took to read each."""
    made = [pace.of_text() for _ in range(count)]
    for each in made:
        each.learn(PLAIN, Outcome(0, 0, prompt_tokens, 0.0, seconds))
    return made
