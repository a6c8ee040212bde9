"""A cost report for people who read a terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mxconv.report.cost_tables import Members, TextTable, heading, report_tables


def print_report(report: Members, console: Console) -> None:
    """Print every part that the report has; `report` is what `mxconv.cost.report.cost_report` returns."""
    hardware, workload = heading(report)
    console.print(Text(hardware, style="bold"), soft_wrap=True)
    console.print(workload, highlight=False)
    for _, table in report_tables(report):
        _print_table(table, console)


def _print_table(found: TextTable, console: Console) -> None:
    if found.columns:
        table = Table(title=found.title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, pad_edge=False)
        for index, column in enumerate(found.columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in found.rows:
            table.add_row(*map(Text, row))
        console.print(table)
    else:
        console.print(found.title, highlight=False)
    for line in found.lines:
        console.print(line, highlight=False)
    if found.verdict:
        console.print(Text(found.verdict, style="bold"), soft_wrap=True)
    for source in found.sources:
        console.print(Text(source, style="dim"), soft_wrap=True)
