"""Which parts of the target its draft leaves out, searched while decoding.

It begins with parts at even distances. Now and then another set is tried on the text that the target has just written.
From all trials follows what each part costs in agreement, more or less surely; the next set to try is the best one if
the costs are what they may well be (Thompson sampling), and the set that drafts is the best one if they are what is
most likely. When that set has not changed for long, the search rests, until proposals are accepted clearly less often.

Source:
    SWIFT, arXiv 2410.06916, section 4: sets are optimized on the generated context, by random search and Bayesian
    optimization, until they are good or a number of steps is used up; then only drafting goes on. Its sets have a fixed
    size; here the price of the parts decides, up to a share.
"""

from collections.abc import Sequence
from math import exp

import numpy as np

from mxconv.arrays import F64
from mxconv.drafts.draft_price import DraftPrice, speedup
from mxconv.drafts.kind import DraftSpec, LoadedLevel, Parameter
from mxconv.drafts.target_views import TargetView
from mxconv.drafts.variant_draft import Variants
from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.package.level_record import LevelRecord, SwiftRecord

FIRST_LOSS = 1.5  # of all parts together: without half of them a draft agrees about every second time
MEMORY = 0.995  # what is left in a study of the weight of all before it
HALF_SEEN = 0.1  # tokens, added to those that agreed and to those that did not: no logarithm of 0
LEAST_VARIANCE = 0.01  # of a study's logarithm: parts do not quite add up


class PartLosses:
    """Bayesian regression of the logarithm of agreement on the parts left out, as if each cost a factor of its own.

    Args:
        num_parts: at least one.
    """

    def __init__(self, num_parts: int) -> None:
        each = FIRST_LOSS / num_parts
        self._first = np.eye(num_parts) / each**2, np.full(num_parts, 1 / each)
        self._precision, self._weighted = (array.copy() for array in self._first)

    def learn(self, places: Sequence[int], num_agreed: int, num_compared: int) -> None:
        """A set tried: the places of its parts, and how many tokens agreed of those that were compared."""
        skipped = np.zeros(len(self._weighted))
        skipped[list(places)] = 1
        agreement = (num_agreed + HALF_SEEN) / (num_compared + 2 * HALF_SEEN)
        variance = (1 - agreement) / (agreement * num_compared) + LEAST_VARIANCE
        self._fade(MEMORY)
        self._precision += np.outer(skipped, skipped) / variance
        self._weighted += skipped * -np.log(agreement) / variance

    def forget(self, share: float) -> None:
        """Lose a share of what was learned."""
        self._fade(1 - share)

    def believed(self) -> F64:
        """(num_parts,): minus the logarithm of each part's factor, none below 0."""
        losses: F64 = np.linalg.solve(self._precision, self._weighted).clip(0)
        return losses

    def drawn(self, normal: F64) -> F64:
        """As `believed`, drawn from all that is possible by (num_parts,) standard normal numbers."""
        around = np.linalg.solve(np.linalg.cholesky(self._precision).T, normal)
        losses: F64 = (np.linalg.solve(self._precision, self._weighted) + around).clip(0)
        return losses

    def _fade(self, kept: float) -> None:
        first_precision, first_weighted = self._first
        self._precision = first_precision + kept * (self._precision - first_precision)
        self._weighted = first_weighted + kept * (self._weighted - first_weighted)


PATIENCE = 128  # studies without a better set
CLEARLY_BETTER = 1.003
GOOD_AGREEMENT, GOOD_PRICE = 0.95, 1.05  # of the cheapest set that may be: nothing to search for
ENOUGH_JUDGED = 64  # proposed tokens that tell a rate
CLEARLY_LESS = 0.8
FORGOTTEN = 0.75
DEFAULT_SKIP = 0.45  # of all parts, as in the paper


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
        parts = [(kind, layer) for layer in range(1, num_layers - 1) for kind in "am"]
        saved = {part: 1 - price.share(Skipped.of([part])) for part in parts}
        self._parts = [part for part in parts if saved[part] > 0]  # a layer may be a mixer alone
        self._most = len(self.skipped)
        self._shares = np.array([saved[part] for part in self._parts])
        self._cheapest = Skipped.of(self._parts[place] for place in np.argsort(-self._shares)[: self._most])
        self._losses = PartLosses(len(self._parts))
        self._random = np.random.default_rng(seed)
        self._num_asked = 1
        self._agreed = self._compared = 0  # of the present set
        self._idle = 0  # studies since there was another
        self._rate_at_rest: float | None = None
        self._accepted = self._judged = 0

    @property
    def rests(self) -> bool:
        return self._idle >= PATIENCE or self._is_good

    def choose(self, most: int) -> tuple[Skipped, int]:
        self._num_asked = most
        return self.skipped, most

    def to_study(self) -> Skipped | None:
        if self.rests:
            return None
        if not self.num_studies:
            return self.skipped
        return self._best(self._losses.drawn(self._random.standard_normal(len(self._parts))))

    def learn(self, skipped: Skipped, num_agreed: int, num_compared: int) -> None:
        self.num_studies += 1
        self._idle += 1
        self._losses.learn(self._places(skipped), num_agreed, num_compared)
        if skipped == self.skipped:
            self._agreed += num_agreed
            self._compared += num_compared
        losses = self._losses.believed()
        best = self._best(losses)
        if self._worth(best, losses) > CLEARLY_BETTER * self._worth(self.skipped, losses):
            self.skipped = best
            self._agreed = self._compared = self._idle = 0

    def judged(self, num_accepted: int, num_judged: int) -> None:
        if not self.rests:
            self._rate_at_rest, self._accepted, self._judged = None, 0, 0
            return
        self._accepted += num_accepted
        self._judged += num_judged
        if self._judged < ENOUGH_JUDGED:
            return
        rate = self._accepted / self._judged
        self._accepted = self._judged = 0
        if self._rate_at_rest is None:
            self._rate_at_rest = rate
        elif rate < CLEARLY_LESS * self._rate_at_rest:  # another kind of text: what was seen says less
            self._losses.forget(FORGOTTEN)
            self._agreed = self._compared = self._idle = 0

    @property
    def _is_good(self) -> bool:
        is_cheap = self.price.of(self.skipped) <= GOOD_PRICE * self.price.of(self._cheapest)
        return is_cheap and self._agreed + 1 >= GOOD_AGREEMENT * (self._compared + 2)

    def _best(self, losses: F64) -> Skipped:
        """The set worth most at these losses: the parts in order of what they cost a byte, as many as pay."""
        order = np.argsort(losses / self._shares, kind="stable")[: self._most].tolist()
        found = [Skipped.of(self._parts[place] for place in order[:number]) for number in range(1, self._most + 1)]
        return max(found, key=lambda skipped: self._worth(skipped, losses))

    def _worth(self, skipped: Skipped, losses: F64) -> float:
        agreement = exp(-float(losses[self._places(skipped)].sum()))
        return speedup(agreement, self.price.of(skipped), self._num_asked)[0]

    def _places(self, skipped: Skipped) -> list[int]:
        """Of its parts, in our order."""
        return [
            place
            for place, (kind, layer) in enumerate(self._parts)
            if layer in (skipped.attention if kind == "a" else skipped.mlp)
        ]


class Swift(TargetView):
    """`swift:skip=0.45`: the target without the parts that a search leaves out, at most a share of all parts."""

    name = "swift"
    record_type = SwiftRecord
    parameters = (Parameter("skip", is_whole=False),)

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"skip": spec.parameters.get("skip", DEFAULT_SKIP)}

    def varied(self, loaded: LoadedLevel, target: Decoder) -> Variants:
        record = loaded.record
        return Variants(record, target, lambda price, num_layers: SkipSearch(price, num_layers, record.skip))

    def left_out(self, record: LevelRecord, num_layers: int) -> Skipped:
        return Skipped.spread(num_layers, record.skip)


SWIFT = Swift()
