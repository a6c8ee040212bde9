"""Numbers of four papers and of model cards beside mxconv's cost models: the tables of docs/research/published.md.

python examples/papers/published_numbers.py [--every-cell]
"""

import sys

from published import ml_specqd, mlp_tables, model_cards, speq_tables, spire_figures
from published.claim import table

PAPERS = {"ML-SpecQD": ml_specqd, "SPEQ": speq_tables, "SPIRe": spire_figures, "MLP speculators": mlp_tables,
          "Model cards": model_cards}  # fmt: skip

if __name__ == "__main__":
    print(
        "\n".join(table(title, paper.claims(), "--every-cell" in sys.argv) for title, paper in PAPERS.items()), end=""
    )
