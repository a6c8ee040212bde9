"""Who else is in a pass: what a row costs depends on how many there are already."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What a level's passes carry.

    Args:
        num_texts: that are decoded side by side, each with rows of its own in a pass.
        other_rows: of a pass, those that belong to none of these: of prompts.
    """

    num_texts: int = 1
    other_rows: int = 0


ALONE = Load()


@dataclass(frozen=True)
class JointPass:
    """A pass that texts shared.

    Args:
        number: tells it from others.
        num_rows: of all texts.
        seconds: of the pass, and of what a level does with it for every text.
    """

    number: int
    num_rows: int
    seconds: float
