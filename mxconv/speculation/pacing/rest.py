"""How long a text that decodes plainly beside others need not ask again whether a draft would pay."""

from dataclasses import dataclass

from mxconv.drafts.passes import Load

MOST_ROUNDS = 8  # for prices change, and what may be lost grows


@dataclass
class Rest:
    """Rounds in which the answer would be the same: nobody tries a draft, and none is due to be tried again.

    Choosing takes as long as a thousandth of a pass. With many texts in a pass that adds up, and plain decoding is what
    it comes to most often.
    """

    load: Load | None = None
    num_tries: int = 0  # of all texts, when it began
    num_rounds: int = 0

    def goes_on(self, load: Load, num_tries: int) -> bool:
        """Whether this round is one of them."""
        if not self.num_rounds or num_tries != self.num_tries or load != self.load:
            return False
        self.num_rounds -= 1
        return True

    def begin(self, load: Load, num_tries: int, seconds: float, round_seconds: float) -> None:
        """Nothing will be due for some seconds; a round takes about so many."""
        self.load, self.num_tries = load, num_tries
        self.num_rounds = int(min(max(seconds, 0.0) / round_seconds, MOST_ROUNDS))
