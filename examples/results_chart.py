"""The README's results as a picture, docs/results.svg: bars read from its table, so that both say the same.

python examples/results_chart.py [FILE.svg]
"""

import sys
from pathlib import Path
from textwrap import wrap

from mxconv.report.charts import Chart, Series, write_picture

ROOT = Path(__file__).resolve().parents[1]
NUM_NAMES = 3  # columns before the figures: the model with its texts, the program, plain decoding in tokens a second


def results(page: str) -> list[list[str]]:
    """The cells of the table under "## Results", its headings first."""
    lines = page.partition("\n## Results\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [rows[0], *rows[2:]]


def chart(headings: list[str], rows: list[list[str]]) -> Chart:
    """A group of bars a row, a colour a kind of draft."""
    names = headings[NUM_NAMES:]
    drawn = {name: Series(name, [], "bars") for name in names}
    marks, ticks, end = [], {}, 0.0  # where the last group ends
    for model, program, _, *cells in rows:
        found = [(name, float(cell)) for name, cell in zip(names, cells, strict=True) if cell]
        width = max(len(found), 3) + 1  # a bar a draft, room for the name, and a gap
        middle, end = end + width / 2, end + width
        for index, (name, speed) in enumerate(found):
            place = middle + index - (len(found) - 1) / 2
            drawn[name].points = [*drawn[name].points, (place, speed)]
            marks.append((place + 0.55, speed, f"{speed:.2f}"))
        ticks[middle] = "\n".join([line for part in [*model.split(", "), program] for line in wrap(part, 16)])
    limits = (0.0, end)
    plain = Series("plain decoding by the same program", [(x, 1) for x in limits], "limit")
    top = max(speed for _, speed, _ in marks)
    return Chart(
        "",
        "",
        "times the speed of plain decoding",
        [plain, *drawn.values()],
        x_limits=limits,
        y_limits=(0, 1.1 * top),
        x_ticks=ticks,
        marks=marks,
    )


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "results.svg"
    headings, *rows = results((ROOT / "README.md").read_text("utf-8"))
    write_picture(path, "Greedy decoding on two threads, every token that of the 16-bit model", [chart(headings, rows)])


if __name__ == "__main__":
    main()
