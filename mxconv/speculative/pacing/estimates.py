"""Running estimates of what rounds cost and bring: the knowledge behind an adaptive pace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log

from mxconv.speculative.pacing.pace import Outcome

MEMORY = 0.98  # what is left in a round of the weight of all that was known before
NARROW_SLOPE = 0.04  # of a plain pass for each further token, until wider ones were seen
MOST_UNUSUAL = 3.0  # times as long as usual; what takes longer was interrupted by somebody else
FEWEST_CHANCES, MOST_CHANCES = 4.0, 16.0  # samples that stay of a chance near 0 or 1, and of an even one
LEAST_PROBABILITY, LEAST_DOUBT = 1e-4, 0.1
FEW_BEHIND = 8  # tokens that a model can have missed and still go on as fast as ever


@dataclass
class RunningMean:
    """A running mean. What was seen long ago counts less, but as `least` samples: a single new one decides nothing."""

    value: float = 0.0
    weight: float = 0.0
    least: float = 1.0

    def fade(self) -> None:
        self.weight = max(self.weight * MEMORY, min(self.weight, self.least))

    def add(self, total: float, count: float = 1.0) -> None:
        if count:
            self.value = (self.value * self.weight + total) / (self.weight + count)
            self.weight += count

    def add_seconds(self, seconds: float) -> None:
        self.add(min(seconds, MOST_UNUSUAL * self.value) if self.weight else seconds)


@dataclass
class Chance(RunningMean):
    """The running mean of what happens or not; few samples tell as much of what is rare or certain."""

    def fade(self) -> None:
        self.least = max(FEWEST_CHANCES, MOST_CHANCES * 4 * self.value * (1 - self.value))
        super().fade()


@dataclass
class PassEstimate:
    """Seconds of a level's own pass: of plain ones, and of wider ones on average; on a line through both.

    Args:
        first_slope: of a plain pass for each further token, until wider ones were seen.
    """

    first_slope: float = NARROW_SLOPE
    plain: RunningMean = field(default_factory=RunningMean)
    wide: RunningMean = field(default_factory=RunningMean)
    width: RunningMean = field(default_factory=RunningMean)

    def add(self, num_tokens: int, seconds: float) -> None:
        for mean in (self.plain, self.wide, self.width):
            mean.fade()
        if num_tokens == 1:
            self.plain.add_seconds(seconds)
        else:
            self.wide.add_seconds(seconds)
            self.width.add(num_tokens)

    def line(self) -> tuple[float, float]:
        """Seconds of one token, and of each further one."""
        if not self.wide.weight:
            return self.plain.value, self.first_slope * self.plain.value
        # a wide pass that is faster than a plain one was shows that the machine has become faster since
        plain = min(self.plain.value, self.wide.value)
        weight = self.wide.weight
        further = ((self.wide.value - plain) * weight + self.first_slope * plain) / (
            (self.width.value - 1) * weight + 1
        )
        return plain, min(further, plain)  # they could be evaluated one by one


@dataclass
class DraftEstimate:
    """What is known of one draft."""

    stands: RunningMean = field(default_factory=lambda: _chance(0.7))  # a proposed token whose predecessors stood
    starts: RunningMean = field(default_factory=lambda: _chance(1.0))  # proposals that are not empty
    goes_on: RunningMean = field(default_factory=lambda: _chance(0.8))  # asked for more than it has said
    doubt: RunningMean = field(default_factory=lambda: RunningMean(0.5, weight=4.0, least=16.0))  # rejections a nat
    seconds: RunningMean = field(default_factory=RunningMean)  # a proposed token
    catch_up: RunningMean = field(default_factory=RunningMean)  # seconds for each token that it has missed
    num_behind: int = 0  # tokens that it has missed
    idle_seconds: float = 0.0  # since it was asked
    patience: float = 1.0  # how many times as long it waits to be tried again
    was_asked: bool = False
    heeds_floors: bool = False  # it tells its probabilities, so it ends proposals in time by itself
    first_seconds: float | None = None  # a proposed token of the first round

    def fade(self) -> None:
        for mean in (self.stands, self.starts, self.goes_on, self.doubt, self.seconds, self.catch_up):
            mean.fade()

    def learn(self, asked: int, outcome: Outcome) -> None:
        """A round in which it was asked."""
        proposed, accepted = outcome.num_proposed, outcome.num_accepted
        self.starts.add(float(proposed > 0))
        if proposed:
            self.stands.add(accepted, min(accepted + 1, proposed))
            self.goes_on.add(proposed - 1, min(proposed, asked - 1))
            self._learn_doubt(accepted, outcome.probabilities)
        self._learn_seconds(outcome.draft_seconds, self.units(outcome))
        self.was_asked, self.num_behind, self.idle_seconds = True, 0, 0.0

    def units(self, outcome: Outcome) -> int:
        """Of what `seconds` is: proposed tokens, one at least."""
        return max(outcome.num_proposed, 1)

    def _learn_seconds(self, draft_seconds: float, num_units: int) -> None:
        each = draft_seconds / num_units
        if self.num_behind <= FEW_BEHIND or (self.was_asked and not self.seconds.weight):
            self.seconds.add_seconds(each)
        elif not self.was_asked:  # it read the prompt, and perhaps its file for the first time
            self.first_seconds = each
        else:
            extra = max(each - self.seconds.value, 0.0) * num_units
            self.catch_up.add(extra / self.num_behind)
            self.seconds.add_seconds(min(each, self.seconds.value))

    def miss(self, outcome: Outcome) -> None:
        """A round in which it was not."""
        is_prompt = outcome.num_evaluated > 1 + outcome.num_proposed + FEW_BEHIND
        self.num_behind = outcome.num_evaluated + (0 if is_prompt else self.num_behind)
        self.idle_seconds += outcome.draft_seconds + outcome.level_seconds

    def _learn_doubt(self, accepted: int, probabilities: Sequence[float]) -> None:
        """Of tokens of probability p, p ** doubt stand: as if rejections came at that rate in a time of -ln p."""
        self.heeds_floors |= bool(probabilities)
        waits = [-log(max(p, LEAST_PROBABILITY)) if p < 1 else 0.0 for p in probabilities[: accepted + 1]]
        is_rejected = len(waits) > accepted
        exposure = sum(waits) - (waits[-1] / 2 if is_rejected else 0.0)  # it came somewhere within the last one
        if exposure > 0:
            self.doubt.add(float(is_rejected), exposure)

    def floor(self, price: float) -> float:
        """The product of probabilities below which the chance that a further token stands is less than `price`."""
        return float(min(price / max(self.stands.value, price), 1.0) ** (1 / max(self.doubt.value, LEAST_DOUBT)))

    @property
    def catch_up_seconds(self) -> float:
        """What it takes before it can go on."""
        return self.catch_up.value * self.num_behind if self.num_behind > FEW_BEHIND else 0.0

    def expected(self, most: int) -> Iterator[tuple[int, float, float]]:
        """For 1 to `most` tokens asked: that number, and how many will be proposed and accepted."""
        proposed = accepted = 0.0
        reached = stood = self.starts.value
        for asked in range(1, most + 1):
            stood *= self.stands.value
            proposed += reached
            accepted += stood
            yield asked, proposed, accepted
            reached *= self.goes_on.value
            stood *= self.goes_on.value


def _chance(prior: float) -> Chance:
    return Chance(prior, weight=2.0)
