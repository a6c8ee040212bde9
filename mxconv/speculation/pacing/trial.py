"""A draft beside a better one, or beside none: when it is tried again."""

from dataclasses import dataclass

from mxconv.drafts.passes import Load
from mxconv.speculation.pacing.account import SHARE_TO_RISK
from mxconv.speculation.pacing.options import Option

HOPELESS = 8.0  # times as long for one that would not pay if all stood that it says,
CROWDED = 2.0  # and where texts that share their passes do without drafts, which seldom pay then


@dataclass(frozen=True)
class Trial:
    """What a draft would be asked for.

    Args:
        option: its best.
        highest_rate: of all its options, if all stood that they propose.
    """

    option: Option
    highest_rate: float

    def wait(self, chosen: Option, load: Load) -> float:
        """Seconds until it has waited long enough for what it costs that all texts try it.

        A hopeless one waits for prices to change, which are learned from other rounds too.
        """
        known = self.option.known
        loss = self.option.seconds - self.option.num_tokens / chosen.rate
        loss = load.num_texts * loss + self.option.catch_up_seconds
        patience = known.patience
        if self.highest_rate <= chosen.rate:
            patience *= HOPELESS
        elif load.num_texts > 1 and not chosen.choice.num_tokens:
            patience *= CROWDED
        return loss * patience / SHARE_TO_RISK - known.idle_seconds
