"""Print the tables of docs/published.md."""

from collections.abc import Iterator

from mxconv.cost.published import ml_specqd, mlp_tables, model_cards, speq_tables, spire_figures
from mxconv.cost.published.claim import Section


def sections() -> Iterator[Section]:
    """Every table, paper by paper."""
    for paper in (ml_specqd, speq_tables, spire_figures, mlp_tables, model_cards):
        yield from paper.sections()


if __name__ == "__main__":
    print("\n".join(section.markdown() for section in sections()), end="")
