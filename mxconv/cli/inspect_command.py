"""`mxconv inspect`: exponents, windows and drafts of a checkpoint or package; the trees of a trace."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from mxconv.cli.common_options import WORKERS, Force, Json, Revision, executors
from mxconv.cli.decode_options import Levels, Memory, planned
from mxconv.cli.output import Output, check_outputs, progress_bars

TRACE_SUFFIX = ".jsonl"


def inspect(
    source: Annotated[
        str,
        typer.Argument(help="Checkpoint folder, .safetensors or .gguf file, Hub id, URL, package, or .jsonl trace."),
    ],
    plot: Annotated[Path | None, typer.Option(help="Draw histogram and drafts into a .png or .svg file.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one HTML page with everything.")] = None,
    tensor: Annotated[str | None, typer.Option(help="Only tensors whose name matches this pattern.")] = None,
    per: Annotated[
        Literal["layer", "kind", "tensor"] | None, typer.Option(help="Rows of the table; kind by default.")
    ] = None,
    dtype: Annotated[
        Literal["bf16", "fp16"] | None, typer.Option(help="Count F32 weights as if rounded to this.")
    ] = None,
    revision: Revision = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Tensors at a time; all processors by default.")] = None,
    workers: WORKERS = "threads",
    memory: Memory = None,
    levels: Levels = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Show exponent histograms and how good each 4-bit draft would be.

    It counts too what falls outside the 16 exponents that hold most weights. With --tensor, each row's own histogram is
    printed too. A file of `generate --trace` is shown as rounds and levels, and with --html as the tree of every round.
    """
    check_outputs(force, [plot], [html])
    out = Output(json_output)
    if source.endswith(TRACE_SUFFIX):
        given = {"--plot": plot, "--tensor": tensor, "--per": per, "--dtype": dtype, "--revision": revision}
        if foreign := [flag for flag, value in given.items() if value is not None]:
            raise typer.BadParameter(f"{', '.join(foreign)}: of weights; a trace takes --html, --force and --json")
        _inspect_trace(Path(source), html, out)
        return
    if memory is not None:
        plan, rate = planned(source, levels, memory, out)
        out.json(asdict(plan) | {"read_gigabytes_per_second": rate / 1e9})
        return
    from mxconv.kernels.engine import usable_processors
    from mxconv.report.inspection import inspect_weights
    from mxconv.report.inspection_page import print_inspection
    from mxconv.report.sources import open_weights

    with (
        open_weights(source, revision=revision, dtype=dtype) as weights,
        progress_bars() as progress,
        executors(workers, usable_processors() if threads is None else threads) as executor,
    ):
        inspection = inspect_weights(
            weights, per=per or "kind", tensor_glob=tensor or "*", progress=progress, executor=executor()
        )
    print_inspection(inspection, out.console, row_histograms=tensor is not None)
    if plot is not None:
        from mxconv.report.charts import write_picture
        from mxconv.report.inspection_page import inspection_charts

        out.write(plot, lambda path: write_picture(path, *inspection_charts(inspection)))
    if html is not None:
        from mxconv.report.inspection_page import render_inspection_page

        out.write_text(html, render_inspection_page(inspection))
    out.json(inspection.to_json())


def _inspect_trace(source: Path, html: Path | None, out: Output) -> None:
    from mxconv.report.traced_run import print_run, read_run, render_run_page

    run = read_run(source)
    print_run(run, out.console)
    if html is not None:
        out.write_text(html, render_run_page(run))
    out.json(run.to_json())
