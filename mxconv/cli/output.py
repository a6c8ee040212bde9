"""Output of commands: tables to stdout, progress and warnings to stderr; with --json stdout ends with an object.

A command's help page has the options that people use first, and the others in named groups: `GROUPS` says which option
belongs where, by the names of parameters; `rich_help_panel` wins where commands differ.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from mxconv.progress import Progress
from mxconv.report.tables import Columns, TextTable, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.bench.gpu_kernel_speed import GpuMachine
    from mxconv.bench.machine import Machine

PIPE_WIDTH = 160  # columns of a table that goes into a file or a pipe


class Output:
    """Prints lines, tables and JSON: to stdout, or to stderr while stdout belongs to --json."""

    def __init__(self, json_output: bool) -> None:
        self._json_output = json_output

    @cached_property
    def console(self) -> "Console":
        """The console on which rich prints."""
        from rich.console import Console

        out = Console(stderr=self._json_output, soft_wrap=True)
        return out if out.is_terminal else Console(stderr=self._json_output, soft_wrap=True, width=PIPE_WIDTH)

    def line(self, text: str, style: str | None = None, end: str = "\n") -> None:
        """Print a text as it is."""
        self.console.print(text, style=style, end=end, markup=False, highlight=False)

    def table(self, columns: Columns, rows: Iterable[Any]) -> None:
        """Print a row of cells for each of `rows`."""
        print_table(TextTable.of("", columns, rows), self.console)

    def json(self, members: dict[str, Any]) -> None:
        """Print an object as the last line of stdout, with --json."""
        if self._json_output:
            sys.stdout.write(json.dumps(members) + "\n")
            sys.stdout.flush()

    def write_text(self, path: Path | None, text: str) -> None:
        """Write a text in UTF-8, as `write` does."""

        def write(partial: Path) -> None:
            partial.write_text(text, encoding="utf-8")

        self.write(path, write)

    def write(self, path: Path | None, write: Callable[[Path], None]) -> None:
        """Let `write` fill a file, beside its place and renamed when complete, and say so; None writes nothing."""
        from mxconv.system.disk import write_output

        if path is not None:
            write_output(path, write)
            self.line(f"wrote {path}")


def print_machine(out: Output, machine: "Machine | GpuMachine", versions: str) -> None:
    """Print which machine measured, with the versions of what was measured."""
    commit = f", mxconv at {machine.commit[:12]}{machine.commit[40:]}" if machine.commit else ""
    out.line(f"{machine.described}, {versions}{commit}")


def check_outputs(force: bool, pictures: Sequence[Path | None], others: Sequence[Path | None] = ()) -> None:
    """See before the work that files can be written.

    Raises:
        MxconvError: one exists and `force` is not set, or a picture is none of .png and .svg.
    """
    from mxconv.report.charts import check_suffix
    from mxconv.system.disk import check_output

    for picture in filter(None, pictures):
        check_suffix(picture)
    for path in filter(None, (*pictures, *others)):
        check_output(path, force)


@contextmanager
def progress_bars(unit: str = "bytes", one_bar: bool = False) -> Iterator[Progress]:
    """A bar a stage, or one whose stage changes, on stderr, where somebody is looking; silent elsewhere.

    The terminal is taken over with the first report, so that the Hub client may draw its own bars before that.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    terminal = Console(stderr=True)
    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn()]
    bars = Bars(*columns, console=terminal, disable=not terminal.is_terminal, transient=True)
    tasks: dict[str, Any] = {}

    def show(stage: str, done: int, total: int) -> None:
        key = "" if one_bar else stage
        if key not in tasks:
            bars.start()
            tasks[key] = bars.add_task(stage, total=total)
        bars.update(tasks[key], description=stage, completed=done)

    try:
        yield show
    finally:
        if tasks:
            bars.stop()


FIRST, LOAD = "Options", "Load and limits"
GROUPS = {
    "Prompts and answers": "stop template_var json_schema regex grammar special_tokens_in_content",
    "Drafts": "draft levels tree num_draft_tokens confidence accept draft_weights calibration_tokens head_screen",
    "Sampling": "temperature top_k top_p min_p repetition_penalty presence_penalty frequency_penalty logit_bias seed",
    "Format": "scale_rule lm_head skip outliers segments residual_bits on_nonfinite max_shard_bytes",
    "Network": "heads inner_dim tie_weights scale_input layers block sink window past_memory random_start no_feedback "
    "draft_vocab_size hidden_size intermediate_size",
    "Training": "loss batch_tokens length learning_rate mixed_precision save_every",
    LOAD: "batch kv_bytes max_sequences max_queue max_prompt_tokens max_body_bytes timeout tokens context",
    "Measurement": "check stats trace samples ablation activations out_features in_features",
    "Machine": "kernel threads kv_dtype weights workers memory device",
    "Attestation": "attestation identity public_key certificate_chain",
    "Pages and pictures": "plot figure roofline html sweep",
    "General": "revision dry_run write force json_output help",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}
TYPES = {"int": "N", "int range": "N", "float": "X", "float range": "X", "path": "PATH", "str": "TEXT"}


class CommandPage(TyperCommand):
    """A command whose help shows options in groups, arguments in capitals and no types of Python, as plain text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if parameter.param_type_name == "argument" and parameter.metavar is None:
                name = str(parameter.name).upper()
                parameter.metavar = name if parameter.nargs == 1 else name.removesuffix("S")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line, with SOURCE for an argument that must be there."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and groups of options, each under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", FIRST, *GROUPS)}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((f"{parameter.metavar}{'...' * (parameter.nargs != 1)}", record[1]))
            else:
                sections[group_of(parameter)].append((re.sub("<(.+)>", _metavar, record[0]), record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def group_of(option: Any) -> str:
    """The heading under which an option is shown."""
    return option.rich_help_panel or GROUP_OF.get(option.name, FIRST)


def _metavar(found: re.Match[str]) -> str:
    """The placeholder of a value: N for `<int>`, PATH for `<list[path]>`, the names of a choice."""
    name = found[1].removeprefix("list[").removesuffix("]")
    return TYPES.get(name.lower(), name)
