"""Behind which layer the draft leaves the target, chosen round by round.

For every exit it keeps how often that exit would have said what the level above said. From these and from prices
follow, for each, the best length of a proposal and what it brings; the best of all drafts. Exits are studied one at a
time on text that is there, the most promising first, and more so those of which little is known.

Source:
    DEL, arXiv 2504.05598: an exit and a length by tokens per layer, from the tokens that every layer's exit would have
    said. There they come from hidden states that drafting and verification leave behind; a source of these would call
    `learn` for all exits at once, in place of a pass each.
"""

from math import sqrt

from mxconv.drafts.draft_price import DraftPrice, speedup
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.running_mean import Chance
from mxconv.drafts.target_views import TargetView
from mxconv.drafts.variant_draft import Variants
from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.package.level_record import LevelRecord


class ExitChoice:
    """Exits 1 (behind the first layer) to one before the last.

    Args:
        price: of sets of skipped parts.
        num_layers: of the target.

    Raises:
        ModelError: it has no exit before its end.
    """

    def __init__(self, price: DraftPrice, num_layers: int) -> None:
        self.price = price
        self.num_studies = 0
        self._known = {Skipped.behind(1, num_layers): Chance(1 / num_layers, weight=2.0)}
        for layer in range(2, num_layers):
            self._known[Skipped.behind(layer, num_layers)] = Chance(layer / num_layers, weight=2.0)
        self._num_asked = 1

    def choose(self, most: int) -> tuple[Skipped, int]:
        self._num_asked = most
        worths = {exit: speedup(known.value, self.price.of(exit), most) for exit, known in self._known.items()}
        best = max(worths, key=lambda exit: worths[exit][0])
        return best, worths[best][1]

    def to_study(self) -> Skipped | None:
        hopes = {
            exit: speedup(min(known.value + 1 / sqrt(known.weight), 1.0), self.price.of(exit), self._num_asked)[0]
            for exit, known in self._known.items()
        }
        return max(hopes, key=lambda exit: hopes[exit])

    def learn(self, skipped: Skipped, num_agreed: int, num_compared: int) -> None:
        self.num_studies += 1
        for known in self._known.values():
            known.fade()
        self._known[skipped].add(num_agreed, num_compared)

    def judged(self, num_accepted: int, num_judged: int) -> None:
        """Studies tell more."""


class EarlyExit(TargetView):
    """`early-exit`: the first layers of the target, as many as pay."""

    name = "early-exit"

    def left_out(self, record: LevelRecord, num_layers: int) -> Skipped:
        return Skipped.behind(num_layers // 2, num_layers)

    def varied(self, loaded: LoadedLevel, target: Decoder) -> Variants:
        return Variants(loaded.record, target, ExitChoice)


EARLY_EXIT = EarlyExit()
