"""A machine that decodes in simulated time: what a pace is told about it, and what a run on it really costs."""

from dataclasses import dataclass, field

import numpy as np

from mxconv.speculation.pace import Choice, Outcome, Pace


@dataclass(frozen=True)
class SimulatedDraft:
    """Seconds and chances of one draft; a plain pass of the level takes one second."""

    acceptance: float  # of a proposed token whose predecessors stood
    seconds: float  # a proposed token
    keeps_on: float = 1.0  # chance to propose a further token
    starts: float = 1.0  # chance to propose any
    catch_up_seconds: float = 0.0  # for each token that it has missed
    doubt: float | None = None  # it tells each token's probability p; the token then stands with chance p ** doubt
    confidence: float = 0.4  # and where nobody tells it a floor, it stops after the first below this

    def expected_rate(self, num_tokens: int, slope: float) -> float:
        """Tokens a second, in the long run, of always asking for `num_tokens`."""
        proposed = accepted = 0.0
        reached = stood = self.starts
        for _ in range(num_tokens):
            stood *= self.acceptance
            proposed, accepted = proposed + reached, accepted + stood
            reached, stood = reached * self.keeps_on, stood * self.keeps_on
        asked = self.seconds * (proposed + 1 - self.starts)  # a draft that says nothing has thought as long
        return (1 + accepted) / (asked + 1 + slope * proposed)


@dataclass
class SimulatedMachine:
    """Rounds of a level with some drafts.

    Args:
        drafts: that it may ask.
        slope: seconds of a pass for each token beyond the first.
        noise: standard deviation of the logarithm of every time that the pace is told.
        seed: of all chances.
    """

    drafts: list[SimulatedDraft]
    slope: float = 0.03
    noise: float = 0.0
    seed: int = 0
    speed: float = 1.0
    seconds: float = 0.0  # without noise, as if `speed` were 1
    num_tokens: int = 0
    choices: list[Choice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._missed = [0] * len(self.drafts)

    def run(self, pace: Pace, num_tokens: int, prompt: int = 20) -> None:
        """One generation; the prompt goes through the level alone and is not counted."""
        end = self.num_tokens + num_tokens
        pace.learn(Choice(0, 0), Outcome(0, 0, prompt, 0.0, self._told(0.2 * prompt)))
        self._missed = [prompt] * len(self.drafts)
        self.num_tokens += 1
        while self.num_tokens < end:
            limit = end - self.num_tokens - 1
            self.round(pace, pace.choose(limit) if limit else Choice(0, 0))

    def round(self, pace: Pace, choice: Choice) -> None:
        proposed, accepted, draft_seconds = 0, 0, 0.0
        probabilities: list[float] = []
        if choice.num_tokens:
            draft = self.drafts[choice.draft]
            if draft.doubt is not None:
                probabilities = self._probabilities(draft, choice)
                proposed = len(probabilities)
                while accepted < proposed and self._random.random() < probabilities[accepted] ** draft.doubt:
                    accepted += 1
            elif self._random.random() < draft.starts:
                proposed = 1
                while proposed < choice.num_tokens and self._random.random() < draft.keeps_on:
                    proposed += 1
                while accepted < proposed and self._random.random() < draft.acceptance:
                    accepted += 1
            missed = self._missed[choice.draft]
            draft_seconds = self.draft_seconds(choice.draft, max(proposed, 1))
            draft_seconds += draft.catch_up_seconds * max(missed - 1, 0)
        level_seconds = 1 + self.slope * proposed
        self._missed = [missed + 1 + accepted for missed in self._missed]
        if choice.num_tokens:
            self._missed[choice.draft] = 1
        self.choices.append(choice)
        self.seconds += draft_seconds + level_seconds
        self.num_tokens += 1 + accepted
        told = self._told(draft_seconds), self._told(level_seconds)
        pace.learn(choice, Outcome(proposed, accepted, 1 + proposed, *told, probabilities))

    def _probabilities(self, draft: SimulatedDraft, choice: Choice) -> list[float]:
        """Of the tokens that the draft proposes before it stops: an even spread of them."""
        told: list[float] = []
        together = 1.0
        while len(told) < choice.num_tokens:
            told.append(float(self._random.random()))
            together *= told[-1]
            if told[-1] < draft.confidence if choice.floor is None else together < choice.floor:
                break
        return told

    def draft_seconds(self, draft: int, num_tokens: int) -> float:
        return self.drafts[draft].seconds * num_tokens

    def best_rate(self) -> float:
        """Of all fixed choices, no draft among them."""
        rates = [draft.expected_rate(n, self.slope) for draft in self.drafts for n in range(1, 17)]
        return max(1.0, *rates)

    def _told(self, seconds: float) -> float:
        return seconds / self.speed * float(np.exp(self.noise * self._random.standard_normal()))
