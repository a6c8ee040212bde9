"""The table of `mxconv bench serve`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mxconv.cli.bench_options import print_machine
from mxconv.cli.output import console

if TYPE_CHECKING:
    from mxconv.bench.machine import Machine
    from mxconv.bench.serving.asked import Asked
    from mxconv.bench.serving.result import ServeResult, Waiting


def print_table(
    machine: "Machine",
    levels: Sequence[str],
    requests: "Sequence[Asked]",
    results: "Sequence[ServeResult]",
    json_output: bool,
) -> None:
    """A row a load, with and without drafts; milliseconds are medians and 99th percentiles."""
    from rich.table import Table

    table = Table(
        *("requests", "drafts", "ok", "failed", "tokens/s", "speed-up", "first token ms", "between tokens ms"),
        *("between chunks ms", "GB/s", "same tokens"),
    )
    for r in results:
        table.add_row(
            r.load,
            "yes" if r.drafts else "no",
            str(r.num_ok),
            str(r.num_failed or ""),
            f"{r.tokens_per_second:.1f}",
            "" if r.speedup is None else f"{r.speedup:.2f}",
            _milliseconds(r.first_token),
            _milliseconds(r.between_tokens),
            _milliseconds(r.between_chunks),
            "" if r.read_bandwidth is None else f"{r.read_bandwidth:.1f}",
            "yes" if r.identical else "NO",
        )
    out = console(json_output)
    print_machine(out, machine)
    out.print(table)
    for error in sorted({error for r in results for error in r.errors}):
        out.print(f"failed: {error}", markup=False, highlight=False)
    out.print(
        f"{' <- '.join(levels)}; {len(requests)} requests a load for {requests[0].max_tokens} tokens each; "
        "milliseconds: median, 99th percentile",
        markup=False,
        highlight=False,
    )


def _milliseconds(waiting: "Waiting | None") -> str:
    return "" if waiting is None else f"{1e3 * waiting.median:.1f}, {1e3 * waiting.p99:.1f}"
