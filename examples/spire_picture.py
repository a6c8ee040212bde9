"""The picture of spire_report.py: tokens a round and modelled throughput of SPIRe and of what it is without its parts.

Source: the second panel is Fig. 5 of arXiv 2504.06419.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokens_a_round import Rate

from mxconv.report.picture import BLUE, GREEN, GREY, ORANGE, PURPLE, SETTINGS, SKY, VERMILION, check_suffix

COLOURS = (BLUE, "#000000", ORANGE, GREEN, VERMILION, PURPLE, SKY)
MARKERS = "osP^Dv*"


def write_picture(
    path: Path,
    rates: Mapping[str, Rate],
    contexts: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    title: str,
    where: str,
    assumed: str,
) -> None:
    """Draw both panels and write them; an existing file is overwritten.

    Args:
        path: of the picture, PNG or SVG.
        rates: tokens a round, SPIRe itself first.
        contexts: of the curves.
        curves: throughput multipliers, of the same drafts in the same order.
        title: above both.
        where: what is below the curves.
        assumed: name of the curve whose tokens a round were not measured.

    Raises:
        MxconvError: another suffix than .png or .svg.
    """
    check_suffix(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(12, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        styles = {name: (colour, marker) for name, colour, marker in zip(rates, COLOURS, MARKERS, strict=False)}
        places = range(len(rates))
        for place, (name, found) in zip(places, rates.items(), strict=True):
            colour, marker = styles[name]
            if name == assumed:
                left.plot(found.mean, place, marker=marker, color=colour, ms=6, mfc="white")
                text, end = f"{found.mean:.2f}, assumed", found.mean
            else:
                left.plot([found.low, found.high], [place, place], color=colour, lw=3, alpha=0.4, solid_capstyle="butt")
                left.plot(found.mean, place, marker=marker, color=colour, ms=6)
                text, end = f"{found.mean:.2f}", found.high
            box = {"fc": "white", "ec": "none", "pad": 1}  # over the dashed line
            left.annotate(text, (end, place), (9, 0), textcoords="offset points", va="center", bbox=box)
        left.axvline(next(iter(rates.values())).mean, color=GREY, lw=0.8, ls="--", zorder=0)
        left.set_yticks(places, list(rates))
        left.set_ylim(len(rates) - 0.5, -0.5)
        left.margins(x=0.15)
        left.grid(axis="x", alpha=0.25)
        left.set_xlabel("tokens a round, with 95% confidence intervals")
        left.set_title("Measured", loc="left")
        for name, values in curves.items():
            colour, marker = styles[name]
            face = "white" if name == assumed else colour
            right.plot(contexts, values, color=colour, marker=marker, ms=5, mfc=face, lw=1.4)
        right.axhline(1.0, color=GREY, lw=1, ls="--")
        right.set_xscale("log", base=2)
        right.set_xticks(contexts, [f"{context:,}" for context in contexts], fontsize=8)
        right.minorticks_off()
        right.set_xlabel(where)
        right.set_ylabel("throughput over plain decoding")
        right.set_ylim(bottom=0.9 * min(1.0, *(min(values) for values in curves.values())))
        right.grid(axis="y", alpha=0.25)
        right.set_title("Modelled; colours and marks as on the left", loc="left")
        figure.suptitle(title, fontsize=11, fontweight="bold")
        is_svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=150, format=path.suffix.lower()[1:], metadata={"Date": None} if is_svg else None)
