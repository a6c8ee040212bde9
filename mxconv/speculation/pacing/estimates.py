"""Running estimates of what a draft costs and brings: the knowledge behind an adaptive pace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log

from mxconv.drafts.running_mean import Chance, RunningMean
from mxconv.speculation.pacing.pace import Outcome
from mxconv.speculation.pacing.shared_seconds import SharedSeconds

LEAST_PROBABILITY, LEAST_DOUBT = 1e-4, 0.1
USUAL_SHARE = 0.35  # of a pass of the level that asks: what one of a 4-bit copy takes
FEW_BEHIND = 8  # tokens that a model can have missed and still go on as fast as ever


@dataclass
class DraftEstimate:
    """What is known of one draft.

    Args:
        share: of a pass of the level that asks, what one of its own is expected to take, until it was seen.
        keeps_up: it shares the level's cache, and has nothing to read that it has missed.
    """

    share: float = USUAL_SHARE
    keeps_up: bool = False
    stands: RunningMean = field(default_factory=lambda: _chance(0.7))  # a proposed token whose predecessors stood
    starts: RunningMean = field(default_factory=lambda: _chance(1.0))  # proposals that are not empty
    goes_on: RunningMean = field(default_factory=lambda: _chance(0.8))  # asked for more than it has said
    doubt: RunningMean = field(default_factory=lambda: RunningMean(0.5, weight=4.0, least=16.0))  # rejections a nat
    seconds: SharedSeconds = field(default_factory=SharedSeconds)  # a proposed token
    catch_up: RunningMean = field(default_factory=RunningMean)  # seconds for each token that it has missed
    idle_seconds: float = 0.0  # since it was asked
    patience: float = 1.0  # how many times as long it waits to be tried again
    was_asked: bool = False
    first_seconds: float | None = None  # a token of the first round, of all texts, where it was not known to read
    heeds_floors: bool = False  # it tells its probabilities, so it ends proposals in time by itself
    rounds_to_fade: int = 0  # since it was asked; what is known fades when something is added
    rounds_reserved: int = 0  # in which one text tries it, and others that have to catch up with it do not

    def fade(self) -> None:
        """A round of some text went by."""
        self.rounds_to_fade += 1
        self.rounds_reserved = max(self.rounds_reserved - 1, 0)

    def reserve(self, num_texts: int) -> None:
        """One of so many texts tries it, in this round and, if it has to catch up, in the next."""
        self.rounds_reserved = 2 * num_texts

    def is_left_to_others(self, num_behind: int) -> bool:
        """Whether a text that would have to catch up with it had better wait for what another one learns."""
        return self.rounds_reserved > 0 and num_behind > FEW_BEHIND

    def _fade_all(self) -> None:
        for mean in (self.stands, self.starts, self.goes_on, self.doubt, self.seconds, self.catch_up):
            mean.fade(self.rounds_to_fade)
        self.rounds_to_fade = 0

    def learn(self, asked: int, outcome: Outcome, num_behind: int) -> None:
        """A round in which it was asked, by a text of which it had missed some tokens."""
        self._fade_all()
        proposed, accepted = outcome.num_proposed, outcome.num_accepted
        self.starts.add(float(proposed > 0))
        if proposed:
            self.stands.add(accepted, min(accepted + 1, proposed))
            self.goes_on.add(proposed - 1, min(proposed, asked - 1))
            self._learn_doubt(accepted, outcome.probabilities)
        self._learn_seconds(outcome, num_behind)
        self.was_asked, self.idle_seconds = True, 0.0

    def units(self, outcome: Outcome) -> int:
        """Of what `seconds` is: proposed tokens, one at least."""
        return max(outcome.num_proposed, 1)

    def _learn_seconds(self, outcome: Outcome, num_behind: int) -> None:
        num_units = self.units(outcome)
        each, sharers = outcome.draft_seconds / num_units, outcome.draft_sharers
        if not self.was_asked and num_behind > FEW_BEHIND:
            # it may have read its file, too, for the first time
            if not self.keeps_up and not self.catch_up.value:
                self.first_seconds = each * sharers
                self.catch_up.value = outcome.draft_seconds / num_behind
        elif self.keeps_up or num_behind <= FEW_BEHIND or not self.seconds.weight:
            self.seconds.add(each, sharers)
        else:
            usual = self.seconds.each(sharers)
            extra = max(each - usual, 0.0) * num_units
            self.catch_up.add(extra / num_behind)
            self.seconds.add(min(each, usual), sharers)

    def miss(self, outcome: Outcome) -> None:
        """A round in which it was not."""
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

    def expect_catch_up(self, seconds: float) -> None:
        """The level that asks takes so long for a token of a prompt, and nothing else is known."""
        if not self.catch_up.weight:
            self.catch_up.value = self.share * seconds

    def catch_up_seconds(self, num_behind: int) -> float:
        """What it takes before it can go on with a text of which it has missed so many tokens."""
        return self.catch_up.value * num_behind if num_behind > FEW_BEHIND else 0.0

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
