"""`mxconv inspect`: exponents, windows and drafts of a checkpoint or package; the trees of a trace."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mxconv.cli.cluster_options import WORKERS, executors
from mxconv.cli.output import console, print_json, progress_bars

TRACE_SUFFIX = ".jsonl"


class Per(StrEnum):
    layer = "layer"
    kind = "kind"
    tensor = "tensor"


class Dtype(StrEnum):
    bf16 = "bf16"
    fp16 = "fp16"


def inspect(
    source: Annotated[
        str,
        typer.Argument(help="Checkpoint folder, .safetensors or .gguf file, Hub id, URL, package, or .jsonl trace."),
    ],
    plot: Annotated[Path | None, typer.Option(help="Draw histogram and drafts into a .png or .svg file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML page with everything.")] = None,
    tensor: Annotated[str | None, typer.Option(help="Only tensors whose name matches this pattern.")] = None,
    per: Annotated[Per | None, typer.Option(help="Rows of the table; kind by default.")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Count F32 weights as if rounded to this.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub source.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Tensors at a time; all processors by default.")] = None,
    workers: WORKERS = "threads",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files of --plot and --html.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object as the last line of stdout.")] = False,
) -> None:
    """Show exponent histograms and how good each 4-bit draft would be.

    Also counts what falls outside the 16 exponents that hold most weights. With --tensor, each row's own histogram is
    printed too. Of a file that `generate --trace` wrote: rounds, levels, and with --html the tree of every round.
    """
    if source.endswith(TRACE_SUFFIX):
        given = {"--plot": plot, "--tensor": tensor, "--per": per, "--dtype": dtype, "--revision": revision}
        _inspect_trace(source, html, [flag for flag, value in given.items() if value is not None], force, json_output)
        return
    from mxconv.kernels.engine import usable_processors
    from mxconv.report.inspection import inspect_weights
    from mxconv.report.inspection_picture import write_inspection_picture
    from mxconv.report.inspection_tables import print_inspection
    from mxconv.report.output_file import check_output, write_output, write_text
    from mxconv.report.picture import check_suffix
    from mxconv.report.sources import open_weights

    if plot is not None:
        check_suffix(plot)
    for path in (plot, html):
        if path is not None:
            check_output(path, force)
    with (
        open_weights(source, revision=revision, dtype=dtype.value if dtype else None) as weights,
        progress_bars() as progress,
        executors(workers, usable_processors() if threads is None else threads) as executor,
    ):
        inspection = inspect_weights(
            weights,
            per=(per or Per.kind).value,
            tensor_glob=tensor or "*",
            progress=progress,
            executor=executor(),
        )
    out = console(json_output)
    print_inspection(inspection, out, row_histograms=tensor is not None)
    if plot is not None:
        write_output(plot, lambda partial: write_inspection_picture(inspection, partial))
        out.print(f"wrote {plot}", markup=False, highlight=False)
    if html is not None:
        from mxconv.report.inspection_page import render_inspection_page

        write_text(html, render_inspection_page(inspection))
        out.print(f"wrote {html}", markup=False, highlight=False)
    if json_output:
        print_json(inspection.to_json())


def _inspect_trace(source: str, html: Path | None, foreign: list[str], force: bool, json_output: bool) -> None:
    from mxconv.report.output_file import check_output, write_text
    from mxconv.report.run_report import print_run, render_run_page
    from mxconv.report.traced_run import read_run

    if foreign:
        raise typer.BadParameter(f"{', '.join(foreign)}: of weights; a trace takes --html, --force and --json")
    if html is not None:
        check_output(html, force)
    run = read_run(Path(source))
    out = console(json_output)
    print_run(run, out)
    if html is not None:
        write_text(html, render_run_page(run))
        out.print(f"wrote {html}", markup=False, highlight=False)
    if json_output:
        print_json(run.to_json())
