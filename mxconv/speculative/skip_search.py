"""Which parts of the target its draft leaves out, searched while decoding.

It begins with parts at even distances. Now and then another set is tried on the text that the target has just written:
the one that promises most, by what is known of the sets tried so far and how unsure that is, among neighbours of the
best set and random ones. The best set drafts. When nothing better was found for long, the search rests, until
proposals are accepted clearly less often than when it did.

Source:
    SWIFT, arXiv 2410.06916, section 4: sets are optimized on the generated context, by random search and Bayesian
    optimization; then only drafting goes on. Its sets have a fixed size; here the price of the parts decides.
"""

import random
from itertools import islice

from mxconv.model.skipped import Skipped
from mxconv.speculative.agreement_model import AgreementModel
from mxconv.speculative.draft_price import DraftPrice, speedup
from mxconv.speculative.estimates import MEMORY
from mxconv.speculative.layer_search import neighbours

MOST_NEAR, MOST_RANDOM = 48, 16  # sets that are thought about before one is tried
MOST_TRIED = 96  # sets that are remembered
PATIENCE = 48  # studies without a better set
GOOD_AGREEMENT, GOOD_PRICE = 0.95, 1.05  # of the cheapest set that may be: nothing to search for
OPTIMISM = 1.0  # standard deviations
ENOUGH_JUDGED = 64  # proposed tokens that tell a rate
CLEARLY_LESS = 0.8


class SkipSearch:
    """A search that goes on from text to text.

    Args:
        price: of sets.
        num_layers: of the target.
        share: of its parts that may be left out.
        seed: of everything random.

    Raises:
        ModelError: the share is no part at all.
    """

    def __init__(self, price: DraftPrice, num_layers: int, share: float, seed: int = 0) -> None:
        self.price = price
        self.skipped = Skipped.spread(num_layers, share)
        self.num_studies = 0
        self._parts = [(kind, layer) for layer in range(1, num_layers - 1) for kind in "am"]
        self._most = min(int(share * 2 * num_layers), len(self._parts))
        sizes = {part: price.parts.total() - price.parts.total(Skipped.of([part])) for part in self._parts}
        self._cheapest = Skipped.of(sorted(self._parts, key=lambda part: -sizes[part])[: self._most])
        self._random = random.Random(seed)
        self._seen: dict[Skipped, tuple[float, float]] = {}
        self._num_asked = 1
        self._idle = 0  # studies since a better set was found
        self._rate_at_rest: float | None = None
        self._num_accepted = self._num_judged = 0

    def choose(self, most: int) -> tuple[Skipped, int]:
        self._num_asked = most
        return self.skipped, most

    @property
    def rests(self) -> bool:
        return self._idle >= PATIENCE or self._is_good

    def to_study(self) -> Skipped | None:
        if self.rests:
            return None
        if self.skipped not in self._seen:
            return self.skipped
        pool = list(dict.fromkeys([*self._seen, *self._near(), *self._anywhere()]))
        mean, deviation = AgreementModel(self._parts, self._seen).believed(pool)
        hopes = [self._worth(s, float(hope)) for s, hope in zip(pool, mean + OPTIMISM * deviation, strict=True)]
        return pool[hopes.index(max(hopes))]

    def learn(self, skipped: Skipped, num_agreed: int, num_compared: int) -> None:
        faded = {tried: (MEMORY * agreed, MEMORY * compared) for tried, (agreed, compared) in self._seen.items()}
        agreed, compared = faded.pop(skipped, (0.0, 0.0))
        latest = {skipped: (agreed + num_agreed, compared + num_compared)}
        self._seen = dict(islice((latest | faded).items(), MOST_TRIED))  # the last ones tried come first
        self.num_studies += 1
        best = self._best()
        self._idle = 0 if best != self.skipped else self._idle + 1
        self.skipped = best

    def judged(self, num_accepted: int, num_judged: int) -> None:
        if not self.rests:
            self._rate_at_rest, self._num_accepted, self._num_judged = None, 0, 0
            return
        self._num_accepted += num_accepted
        self._num_judged += num_judged
        if self._num_judged < ENOUGH_JUDGED:
            return
        rate = self._num_accepted / self._num_judged
        self._num_accepted = self._num_judged = 0
        if self._rate_at_rest is None:
            self._rate_at_rest = rate
        elif rate < CLEARLY_LESS * self._rate_at_rest:  # another kind of text: what was seen says less
            self._idle = 0
            self._seen = {tried: (agreed / 4, compared / 4) for tried, (agreed, compared) in self._seen.items()}

    @property
    def _is_good(self) -> bool:
        agreed, compared = self._seen.get(self.skipped, (0.0, 0.0))
        is_cheap = self.price.of(self.skipped) <= GOOD_PRICE * self.price.of(self._cheapest)
        return is_cheap and agreed + 1 >= GOOD_AGREEMENT * (compared + 2)

    def _best(self) -> Skipped:
        tried = list(self._seen)
        mean, _ = AgreementModel(self._parts, self._seen).believed(tried)
        worths = [self._worth(skipped, float(agreement)) for skipped, agreement in zip(tried, mean, strict=True)]
        return tried[worths.index(max(worths))]

    def _worth(self, skipped: Skipped, agreement: float) -> float:
        return speedup(min(max(agreement, 0.0), 1.0), self.price.of(skipped), self._num_asked)[0]

    def _near(self) -> list[Skipped]:
        near = neighbours(self.skipped, self._parts, self._random)
        return list(islice((one for one in near if 1 <= len(one) <= self._most), MOST_NEAR))

    def _anywhere(self) -> list[Skipped]:
        sizes = [self._random.randint((self._most + 1) // 2, self._most) for _ in range(MOST_RANDOM)]
        return [Skipped.of(self._random.sample(self._parts, size)) for size in sizes]
