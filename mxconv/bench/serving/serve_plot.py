"""A server under load as a picture: tokens a second, and what clients wait for. PNG or SVG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.bench.machine import Machine
from mxconv.bench.serving.result import ServeResult, Waiting
from mxconv.report.picture import BLUE, GREY, SETTINGS, check_suffix, label_log_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STYLES = {False: ("without drafts", GREY, "s"), True: ("with drafts", BLUE, "o")}
WAITS: tuple[tuple[str, Callable[[ServeResult], Waiting | None]], ...] = (
    ("seconds to the first token", lambda result: result.first_token),
    ("seconds between tokens", lambda result: result.between_tokens),
)
SIZE_INCHES = (12.6, 4.6)


def write_serve_plot(results: Sequence[ServeResult], levels: Sequence[str], machine: Machine, path: Path) -> None:
    """Panels over the load: throughput, first token, time between tokens (line: median, dotted: 99th percentile).

    An existing file is overwritten.

    Args:
        results: of loads of one kind.
        levels: that served them, the target first.
        machine: that served.
        path: the picture.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    check_suffix(path)
    # imported here: it takes a second, and only pictures need it
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        throughput, *others = figure.subplots(1, 3)
        _draw_throughput(throughput, results)
        for axes, (label, waiting) in zip(others, WAITS, strict=True):
            _draw_waiting(axes, results, label, waiting)
        for axes in (throughput, *others):
            _label_loads(axes, results)
        handles, labels = throughput.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
        title = f"{' <- '.join(levels)} over HTTP, {threads}, {machine.cpu}"
        figure.suptitle(title, fontsize=11, fontweight="bold")
        is_svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=150, format=path.suffix.lower()[1:], metadata={"Date": None} if is_svg else None)


def _draw_throughput(axes: "Axes", results: Sequence[ServeResult]) -> None:
    axes.set_title("Tokens a second, all requests together")
    for drafts, rows in _by_mode(results).items():
        label, colour, marker = STYLES[drafts]
        rates = [row.tokens_per_second for row in rows]
        axes.plot(range(len(rows)), rates, color=colour, marker=marker, ms=5, lw=1.4, label=label)
        for place, row in enumerate(rows):
            if row.speedup is not None:
                at, offset = (place, row.tokens_per_second), (0, 7 if row.speedup >= 1 else -14)
                axes.annotate(f"{row.speedup:.2f}x", at, offset, textcoords="offset points", color=colour, ha="center")
    axes.set_ylim(0, 1.15 * max(row.tokens_per_second for row in results))
    axes.set_ylabel("tokens a second")


def _draw_waiting(
    axes: "Axes", results: Sequence[ServeResult], label: str, waiting: Callable[[ServeResult], Waiting | None]
) -> None:
    axes.set_title(label.capitalize())
    for drafts, rows in _by_mode(results).items():
        _, colour, marker = STYLES[drafts]
        found = [(place, waited) for place, row in enumerate(rows) if (waited := waiting(row)) is not None]
        places = [place for place, _ in found]
        axes.plot(places, [waited.median for _, waited in found], color=colour, marker=marker, ms=5, lw=1.4)
        axes.plot(places, [waited.p99 for _, waited in found], color=colour, marker=marker, ms=3, lw=1, ls=":")
    axes.set_yscale("log")
    label_log_axis(axes.yaxis)
    axes.set_ylabel("seconds (dotted: 99th percentile)")


def _label_loads(axes: "Axes", results: Sequence[ServeResult]) -> None:
    rows = next(iter(_by_mode(results).values()))
    is_closed = rows[0].concurrency is not None
    names = [f"{row.concurrency if is_closed else row.rate:g}" for row in rows]
    axes.set_xticks(range(len(rows)), names)
    axes.set_xlabel("requests at a time" if is_closed else "requests a second, arriving at random")
    axes.margins(x=0.08)
    axes.grid(axis="y", alpha=0.25)


def _by_mode(results: Sequence[ServeResult]) -> dict[bool, list[ServeResult]]:
    modes = sorted({result.drafts for result in results})
    return {drafts: [result for result in results if result.drafts == drafts] for drafts in modes}
