"""The heat maps of batch_maps.py: over batch and context, a panel a method, with a number in each cell.

python examples/batch_pictures.py FOLDER      # draws FOLDER/batch_maps.json once more
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from batch_results import CellResult, from_json

from mxconv.report.picture import GREY, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

SPEEDS, SHARES = "batch_speeds.png", "batch_measured_over_predicted.png"
NUM_COLUMNS = 4
PANEL_INCHES = 3.5, 2.9
LEAST_SPREAD = 1.25  # of the colours, however near to 1 all figures are
Texts = Callable[[CellResult], tuple[float, str]]


def draw(results: Sequence[CellResult], title: str, folder: Path) -> None:
    """Write both; what is there is overwritten.

    Args:
        results: of all cells.
        title: of what, where: it stands above both.
        folder: where they go.
    """
    methods = [method.method for method in results[0].methods]

    def speed(place: int) -> Texts:
        def of(cell: CellResult) -> tuple[float, str]:
            best = cell.methods[place].fastest
            return best.over_plain, f"{best.over_plain:.2f}\nk {best.label}"

        return of

    def share(place: int) -> Texts:
        def of(cell: CellResult) -> tuple[float, str]:
            value = cell.methods[place].measured_over_predicted
            return value, f"{value:.2f}"

        return of

    def plain_share(cell: CellResult) -> tuple[float, str]:
        value = cell.predicted_plain_seconds / cell.plain_seconds
        return value, f"{value:.2f}"

    speeds: dict[str, Texts] = {name: speed(place) for place, name in enumerate(methods)}
    shares: dict[str, Texts] = {"plain decoding, tokens a second": plain_share}
    shares |= {f"{name}, speed-up": share(place) for place, name in enumerate(methods)}
    label = "tokens a second over plain decoding, measured, best k (x candidates)"
    _draw(results, speeds, "RdBu", label, title, folder / SPEEDS, plain=True)
    _draw(results, shares, "PuOr", "measured over predicted", title, folder / SHARES, plain=False)


def _draw(
    results: Sequence[CellResult],
    panels: dict[str, Texts],
    colours: str,
    label: str,
    title: str,
    path: Path,
    plain: bool,
) -> None:
    """Maps on one scale, on which half and twice are as far from white."""
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import CenteredNorm
    from matplotlib.figure import Figure

    values = [text(cell)[0] for text in panels.values() for cell in results]
    most = max(LEAST_SPREAD, *(max(value, 1 / value) for value in values))
    scale, part = CenteredNorm(0.0, float(np.log2(most))), _light(colours)
    num_panels = len(panels) + plain
    num_rows = -(-num_panels // NUM_COLUMNS)
    with matplotlib.rc_context(SETTINGS):
        size = PANEL_INCHES[0] * min(num_panels, NUM_COLUMNS) + 1.0, PANEL_INCHES[1] * num_rows + 0.6
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        every = list(figure.subplots(num_rows, min(num_panels, NUM_COLUMNS), squeeze=False).flat)
        axes = iter(every)
        if plain:
            _draw_plain(next(axes), results)
        for (name, text), panel in zip(panels.items(), axes, strict=False):
            cells, texts = _grid(results, text)
            panel.imshow(np.log2(cells), origin="lower", aspect="auto", cmap=part, norm=scale)
            _write(panel, results, texts, name)
        for panel in every[num_panels:]:
            panel.set_visible(False)
        bar = figure.colorbar(ScalarMappable(scale, part), ax=every, label=label, fraction=0.03)
        ticks = _ticks(most)
        bar.set_ticks(
            [float(np.log2(tick)) for tick in ticks],
            labels=[f"{tick:.3g}" if tick > 1 else f"{tick:.2g}" for tick in ticks],
        )
        figure.suptitle(title, fontsize=11, fontweight="bold")
        figure.savefig(path, dpi=150, format="png")


def _draw_plain(panel: "Axes", results: Sequence[CellResult]) -> None:
    """Tokens a second, on no scale: what all others are over."""
    cells, texts = _grid(results, lambda cell: (1.0, f"{cell.plain_tokens_per_second:.1f}"))
    panel.imshow(np.where(np.isnan(cells), np.nan, 0.0), origin="lower", aspect="auto", cmap=_light("Greys"), vmin=0)
    _write(panel, results, texts, "plain decoding, tokens a second")


def _grid(results: Sequence[CellResult], text: Texts) -> tuple[np.ndarray, dict[tuple[int, int], str]]:
    """Values by batch and context, NaN where a cell was left out, and what is written there."""
    batches, contexts = _axes_of(results)
    cells, texts = np.full((len(batches), len(contexts)), np.nan), {}
    for cell in results:
        place = batches.index(cell.batch), contexts.index(cell.context)
        cells[place], texts[place] = text(cell)
    return cells, texts


def _write(panel: "Axes", results: Sequence[CellResult], texts: dict[tuple[int, int], str], title: str) -> None:
    batches, contexts = _axes_of(results)
    for (row, column), text in texts.items():
        panel.text(column, row, text, ha="center", va="center", fontsize=8)
    panel.set_xticks(range(len(contexts)), [f"{context:,}" for context in contexts])
    panel.set_yticks(range(len(batches)), [str(batch) for batch in batches])
    panel.set_xlabel("context (positions)")
    panel.set_ylabel("batch (sequences)")
    panel.set_title(title, fontsize=9, loc="left")
    panel.tick_params(length=0, colors=GREY)


def _axes_of(results: Sequence[CellResult]) -> tuple[list[int], list[int]]:
    return sorted({cell.batch for cell in results}), sorted({cell.context for cell in results})


def _light(name: str) -> "Colormap":
    """Without its darkest colours, on which numbers are hard to read."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps[name](np.linspace(0.2, 0.8, 256)))


def _ticks(most: float) -> list[float]:
    """One, and factors of at least a fifth of the scale on either side, as far as it goes."""
    found = [1.0]
    for tick in (1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0):
        if tick <= most and np.log2(tick / found[-1]) >= np.log2(most) / 5:
            found.append(tick)
    return [*(1 / tick for tick in reversed(found[1:])), *found]


def main() -> None:
    folder = Path(sys.argv[1])
    found = json.loads((folder / "batch_maps.json").read_text(encoding="utf-8"))
    draw(from_json(found["cells"]), found["title"], folder)


if __name__ == "__main__":
    main()
