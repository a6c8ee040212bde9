"""What `compare_serving.py` tells: tokens a second of each engine, their ratios, and a table of both."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from mxconv.bench.samples import spread

DRAFTED = "mxconv with drafts"


@dataclass(frozen=True)
class Row:
    """Medians over the rounds. In a ratio's row, quotients in place of tokens a second."""

    group: str
    num_sequences: int
    name: str
    tokens_per_second: float
    p10: float
    p90: float
    same_tokens: float | None = None  # share of those that are mxconv's
    read_bandwidth: float | None = None  # beside it, GB/s


def row(group: str, width: int, name: str, values: Sequence[float], *others: float) -> Row:
    found = spread(values)
    return Row(group, width, name, found.median, found.p10, found.p90, *others)


def ratios(group: str, width: int, rates: dict[str, list[float]]) -> list[Row]:
    """Round by round: drafts beside none, and mxconv, with drafts where it has some, beside the best other engine."""
    ours = [name for name in rates if name.startswith("mxconv")]
    peers = [rates[name] for name in rates if name not in ours]
    rows = []
    if DRAFTED in rates:
        rows.append(row(group, width, "with / without drafts", np.divide(rates[DRAFTED], rates[ours[0]]).tolist()))
    if peers:
        best = np.max(peers, axis=0)
        rows.append(row(group, width, f"{ours[-1]} / best peer", np.divide(rates[ours[-1]], best).tolist()))
    return rows


def table_of(rows: Sequence[Row]) -> Table:
    table = Table(title="Sequences side by side, tokens a second of all together")
    for name in ("weights", "sequences", "engine", "tokens/s", "p10", "p90", "same tokens", "GB/s"):
        table.add_column(name, no_wrap=True, justify="left" if name in ("weights", "engine") else "right")
    for one in rows:
        is_ratio = one.read_bandwidth is None
        figures = [f"{value:.2f}{' x' if is_ratio else ''}" for value in (one.tokens_per_second, one.p10, one.p90)]
        beside = ["", ""] if is_ratio else [f"{one.same_tokens:.0%}", f"{one.read_bandwidth:.1f}"]
        table.add_row(one.group, str(one.num_sequences), one.name, *figures, *beside)
    return table
