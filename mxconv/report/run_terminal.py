"""A run for people who read a terminal: rounds, levels, and the width of trees by depth."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxconv.report.run import Run
from mxconv.report.text import NOTHING, number, printable


def print_run(run: Run, console: Console) -> None:
    """Print sums; the trees themselves are for a page."""
    console.print(Text(f"{printable(run.name)}  (trace)", style="bold"), soft_wrap=True)
    console.print(
        f"{run.num_tokens:,} tokens of {len(run.prompts):,} prompt{'' if len(run.prompts) == 1 else 's'} in "
        f"{run.num_rounds:,} rounds of the target ({run.num_tokens / run.num_rounds:.2f} a round)",
        highlight=False,
    )
    levels = _table("level", "passes", "proposed", "nodes", "accepted", "share", "seconds")
    for level in run.levels:
        levels.add_row(
            Text(printable(level.name)),
            f"{level.num_forwards:,}",
            f"{level.num_proposed:,}" if level.num_nodes else NOTHING,
            f"{level.num_nodes:,}" if level.num_nodes else NOTHING,
            f"{level.num_accepted:,}" if level.num_nodes else NOTHING,
            number(level.num_accepted / level.num_proposed if level.num_proposed else None, 3),
            f"{level.seconds:.2f}",
        )
    console.print(levels)
    if not run.has_trees:
        console.print(
            "This trace tells no trees: it was written by a version before they were recorded.", highlight=False
        )
    for draft, depths in run.depths.items():
        if not depths:
            continue
        table = _table(f"{printable(draft)}, by depth", "rounds", "nodes", "nodes a round", "accepted", "share")
        for place, depth in enumerate(depths, 1):
            table.add_row(
                str(place),
                f"{depth.num_rounds:,}",
                f"{depth.num_nodes:,}",
                f"{depth.num_nodes / depth.num_rounds:.2f}",
                f"{depth.num_stood:,}",
                f"{depth.num_stood / depth.num_rounds:.3f}",
            )
        console.print(table)


def _table(first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(Text(first))
    for title in others:
        table.add_column(title, justify="right")
    return table
