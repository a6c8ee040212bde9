"""Texts decoded side by side in simulated time: a pass costs what all rows in it cost."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mxconv.drafts.passes import JointPass, Load
from mxconv.speculation.pace import Choice, Outcome, Pace

Price = Callable[[int], float]  # rows of a pass to seconds


def roofline(rows_for_nothing: int, slope: float = 0.004) -> Price:
    """A second while memory is the limit, and beyond so many rows as much as they are more."""
    return lambda rows: max(1.0, rows / rows_for_nothing) + slope * rows


@dataclass
class SimulatedBatch:
    """Steps of a target with one draft, all texts in lockstep.

    Args:
        price: of the target's passes.
        draft_share: of that price: the draft's passes.
        acceptance: that a proposed token stands whose predecessors did.
        noise: standard deviation of the logarithm of every time that the pace is told.
        seed: of all chances.
        prompt_tokens: that the draft has not seen of a text when it is first asked.
    """

    price: Price
    draft_share: float
    acceptance: float
    noise: float = 0.0
    seed: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    num_tokens: int = 0
    asked: list[int] = field(default_factory=list)  # of each text and step
    num_passes: int = 0
    num_catching_up: list[int] = field(default_factory=list)  # texts of a step, of which the draft reads what it missed

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def run(self, paces: list[Pace], num_steps: int, other_rows: int = 0) -> float:
        """Tokens for the time that a plain token takes, over some steps of as many texts as there are paces."""
        begin, before = self.seconds, self.num_tokens
        self._missed = {id(pace): self.prompt_tokens for pace in paces}
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
        choices = [pace.choose(limit, load) for pace, limit in zip(paces, limits, strict=True)]
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
        self.num_catching_up.append(sum(most > 0 and missed[text] > 1 for text, most in enumerate(wanted)))
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
                Outcome(wanted[text], accepted, 1 + wanted[text], told[text], share, (), 0, load, joint, sharers),
            )
        self.num_tokens += sum(counts)
        return counts

    def best(self, num_texts: int, most: int = 16) -> tuple[float, int]:
        """Of all fixed lengths the most tokens for the time of a plain one, and that length; 0 is none."""
        plain = self.price(num_texts)
        rates = []
        for length in range(most + 1):
            tokens = sum(self.acceptance**depth for depth in range(length + 1))
            seconds = self.price(num_texts * (1 + length)) + length * self.draft_share * self.price(num_texts)
            rates.append((tokens * plain / seconds, -length))
        rate, length = max(rates)
        return rate, -length


def texts(pace: Pace, count: int, prompt_tokens: int = 20, seconds: float = 4.0) -> list[Pace]:
    """Paces of so many texts after their prompts, and what the level took to read each."""
    made = [pace.of_text() for _ in range(count)]
    for each in made:
        each.learn(Choice(0, 0), Outcome(0, 0, prompt_tokens, 0.0, seconds))
    return made
