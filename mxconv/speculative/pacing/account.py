"""What drafts may still lose: an account in rounds of plain decoding, of all texts that are decoded side by side."""

SHARE_TO_RISK = 0.025  # of all rounds
FIRST_CREDIT, MOST_CREDIT = 1.25, 6.0


class Account:
    """A little is there from the start, and a small share of all rounds is added."""

    def __init__(self) -> None:
        self.rounds = FIRST_CREDIT
        self.num_tries = 0  # rounds in which a draft was asked

    def book(self, num_tokens: int, loss: float, num_texts: int) -> None:
        """A round of one text.

        Args:
            num_tokens: it brought so many.
            loss: in plain rounds of that text; negative where a draft has gained some.
            num_texts: of which it is one.
        """
        self.rounds += (SHARE_TO_RISK * num_tokens - loss) / num_texts
        self.rounds = max(min(self.rounds, MOST_CREDIT), -FIRST_CREDIT)
