"""What drafts may still lose: an account in rounds of plain decoding, of all texts that are decoded side by side."""

SHARE_TO_RISK = 0.02  # of all rounds
FIRST_CREDIT, MOST_CREDIT = 1.25, 6.0


class Account:
    """A little is there from the start, a small share of all rounds is added, and what drafts gain.

    `rounds` is what a round may lose, never much, whatever was gained before. `saved` is all that there ever was, less
    what was lost. A draft that has missed a prompt reads it from that: this takes long, once, and is earned back while
    the text goes on.
    """

    def __init__(self) -> None:
        self.rounds = self.saved = FIRST_CREDIT
        self.num_tries = 0  # rounds in which a draft was asked

    def book(self, num_tokens: int, loss: float, catch_up: float, num_texts: int) -> None:
        """A round of one text.

        Args:
            num_tokens: it brought so many.
            loss: in plain rounds of that text; negative where a draft has gained some.
            catch_up: the same, of reading what the draft had missed, beside the loss.
            num_texts: of which it is one.
        """
        change = (SHARE_TO_RISK * num_tokens - loss) / num_texts
        self.rounds = max(min(self.rounds + change, MOST_CREDIT), -FIRST_CREDIT)
        self.saved += change - catch_up / num_texts
