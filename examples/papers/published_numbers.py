"""Numbers of four papers and of model cards beside mxconv's cost models: the tables of docs/research/published.md.

python examples/papers/published_numbers.py [--every-cell]
"""

import sys
from collections.abc import Iterator

from published import ml_specqd, mlp_tables, model_cards, speq_tables, spire_figures
from published.claim import Section


def sections() -> Iterator[Section]:
    """A table a paper."""
    for paper in (ml_specqd, speq_tables, spire_figures, mlp_tables, model_cards):
        yield from paper.sections()


if __name__ == "__main__":
    print("\n".join(section.markdown("--every-cell" in sys.argv) for section in sections()), end="")
