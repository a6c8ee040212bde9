"""A model's text on a page: white space that shows, and nothing that could steer a reader's terminal or eye."""

import re
from dataclasses import dataclass

from mxconv.report.text import printable

MARKS = {" ": "·", "\n": "↵", "\t": "⇥"}
PIECES = re.compile(r"[ \n\t]+|[^ \n\t]+")
ELLIPSIS = "…"


@dataclass(frozen=True)
class Piece:
    """Characters of one sort; marks stand for white space."""

    text: str
    is_mark: bool


def label_pieces(text: str, most: int) -> list[Piece]:
    """A short label: every space, line feed and tab as its mark, and at most so many characters."""
    cut = text if len(text) <= most else text[: most - 1]
    pieces = [
        Piece("".join(MARKS[c] for c in part), True) if part[0] in MARKS else Piece(printable(part), False)
        for part in PIECES.findall(cut)
    ]
    return pieces if cut == text else [*pieces, Piece(ELLIPSIS, True)]


def text_pieces(text: str) -> list[Piece]:
    """Running text: spaces are spaces, a line feed ends its line behind its mark, a tab has its mark."""
    found: list[Piece] = []
    for line in re.split(r"(\n|\t)", text):
        if line == "\n":
            found += [Piece(MARKS[line], True), Piece("\n", False)]
        elif line == "\t":
            found.append(Piece(MARKS[line], True))
        elif line:
            found.append(Piece(printable(line), False))
    return found
