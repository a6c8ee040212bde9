"""Prints the tables of docs/published.md."""

from collections.abc import Iterator

from mxconv.cost.published import ml_specqd, mlp_speculator, model_cards, speq, spire
from mxconv.cost.published.row import Section


def sections() -> Iterator[Section]:
    """Every table, paper by paper."""
    for paper in (ml_specqd, speq, spire, mlp_speculator, model_cards):
        yield from paper.sections()


def markdown() -> str:
    """The tables of docs/published.md, as Markdown."""
    return "\n".join(section.markdown() for section in sections())


if __name__ == "__main__":
    print(markdown(), end="")
