"""`mxconv cost`: what speculation is worth on given hardware, before anything is downloaded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mxconv.cli import completion
from mxconv.cli.common_options import Force, Json, numbers_of
from mxconv.cli.output import Columns, Output, check_outputs, format_bytes, progress_bars

if TYPE_CHECKING:
    from mxconv.cost.answers import Question
    from mxconv.cost.hardware import Hardware
    from mxconv.cost.levels import Workload

CLUSTER_TABLE: Columns = {
    "codec": ("codec",),
    "nodes": ("num_nodes",),
    "minutes": ("seconds", ".2f", 1 / 60),
    "bound by": ("bottleneck",),
}


def cost(
    package: Annotated[Path | None, typer.Argument(help="A package; its levels are the hierarchy.")] = None,
    config: Annotated[Path | None, typer.Option(help="A config.json instead; no weights are needed.")] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(help="What `generate --trace` wrote; repeatable, one file a strategy.")
    ] = None,
    hardware: Annotated[
        str, typer.Option(help="A name, or a .toml file; `list` shows the names.", autocompletion=completion.hardware)
    ] = "this-machine",
    model: Annotated[
        Literal["speedup", "throughput", "accelerator", "roofline", "all"], typer.Option(help="Which model answers.")
    ] = "all",
    acceptance: Annotated[
        str | None,
        typer.Option(help="Probability that a draft token is accepted: of the 4-bit draft, then of the next: 0.9,0.6."),
    ] = None,
    num_draft_tokens: Annotated[
        str | None,
        typer.Option(help="Draft tokens a round, means too: one, or one a draft level; the fastest by default."),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=1 << 20, help="Sequences decoded together.")] = 1,
    context: Annotated[int, typer.Option(min=1, max=1 << 24, help="Positions in each cache.")] = 1024,
    kv_dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "fp8", "int8"] | None,
        typer.Option(help="Of the cache: bf16 by default, fp32 for a package, as mxconv keeps it."),
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Speed-up over acceptance and length.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw --figure into a .png or .svg file.")] = None,
    figure: Annotated[
        Literal[
            "draft",
            "two-drafts",
            "ml-specqd",
            "throughput-curves",
            "throughput-maps",
            "throughput-maps-70b",
            "roofline",
        ],
        typer.Option(help="What --plot draws."),
    ] = "draft",
    html: Annotated[Path | None, typer.Option(help="Write one HTML page with all tables and pictures.")] = None,
    cluster: Annotated[
        int | None, typer.Option(min=1, max=1 << 16, help="Predict instead how long 1 to this many nodes convert.")
    ] = None,
    processors: Annotated[int, typer.Option(min=1, max=1 << 16, help="Of a node, for --cluster.")] = 16,
    network: Annotated[float, typer.Option(min=1e-3, help="GB/s of a node, for --cluster.")] = 1.25,
    store: Annotated[float, typer.Option(min=1e-3, help="GB/s of the shared folder, for --cluster.")] = 10.0,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Predict speed, bytes and energy, and whether speculation pays."""
    from mxconv.cost.hardware import hardware_names, open_hardware

    if hardware == "list":
        for name in hardware_names():
            typer.echo(f"{name:20} {open_hardware(name).description}")
        return
    if (package is None) == (config is None):
        raise typer.BadParameter("give either a package or --config")
    out = Output(json_output)
    if cluster is not None:
        path = config if package is None else package / "config.json"
        assert path is not None
        _predict_conversion(path, cluster, processors, network, store, out)
        return
    if plot is not None or html is not None:  # an answer alone needs no pictures
        check_outputs(force, [plot], [html])

    from mxconv.cost.answers import MODELS, cost_report
    from mxconv.cost.levels import Workload
    from mxconv.report.cost_tables import print_report

    question = _question(
        package,
        config,
        trace or [],
        open_hardware(hardware),
        Workload(batch, context, kv_dtype or ("bf16" if package is None else "fp32")),
        list(MODELS) if model == "all" else [model],
        None if acceptance is None else numbers_of("--acceptance", acceptance, float),
        None if num_draft_tokens is None else numbers_of("--num-draft-tokens", num_draft_tokens, float),
        sweep,
    )
    report = cost_report(question)
    print_report(report, out.console)
    if plot is not None:
        from mxconv.report.cost_picture import write_figure

        out.write(plot, lambda path: write_figure(figure, question, path))
    if html is not None:
        out.write_text(html, _page(question, report, package))
    out.json(report)


def _page(question: "Question", report: dict[str, Any], package: Path | None) -> str:
    """The HTML page; the weights of a package are read for their exponents, which takes time for a large one."""
    from mxconv.report.cost_page import render_cost_page

    if package is None:
        return render_cost_page(question, report)
    from mxconv.package.manifest import read_manifest
    from mxconv.report.inspection import inspect_weights
    from mxconv.report.sources import open_weights

    with open_weights(str(package)) as weights, progress_bars() as progress:
        inspection = inspect_weights(weights, progress=progress)
    return render_cost_page(question, report, read_manifest(package), inspection)


def _question(
    package: Path | None,
    config: Path | None,
    traces: list[Path],
    hardware: "Hardware",
    workload: "Workload",
    models: list[str],
    acceptance: list[float] | None,
    lengths: list[float] | None,
    sweep: bool,
) -> "Question":
    from mxconv.arch.model_sizes import ModelSizes
    from mxconv.cost.answers import Question
    from mxconv.cost.levels import FOUR_BIT, SMALL, strategies_of, with_acceptance, with_rows
    from mxconv.cost.trace import read_trace

    if package is not None:
        from mxconv.cost.package_levels import package_levels, package_strategies
        from mxconv.package.package import Package

        with Package(package) as opened:
            levels = package_levels(opened)
        strategies = package_strategies(levels)
        architecture = levels[0].architecture
        assert architecture is not None
        drafts: list[tuple[str, ...]] = [(level.name,) for level in levels[1:]]
    else:
        if traces:
            raise typer.BadParameter("--trace: needs the package that it was made with, not --config")
        assert config is not None
        architecture = ModelSizes.from_file(config)
        strategies = strategies_of(architecture)
        drafts = [FOUR_BIT, (SMALL,)]
    found = [read_trace(path) for path in traces]
    for run in found:
        by_name = {level.name: level.acceptance for level in run.levels if level.num_proposed}
        rows = {level.name: level.rows_per_token for level in run.levels if level.num_proposed}
        source = f"trace {run.name}" + (", the rows of its trees counted" if max(rows.values(), default=1) > 1 else "")
        strategies = {name: with_rows(with_acceptance(own, by_name, source), rows) for name, own in strategies.items()}
    if acceptance is not None:
        if len(acceptance) > len(drafts):
            raise typer.BadParameter(
                f"--acceptance: {len(acceptance)} numbers for {len(drafts)} draft levels; at most one each is required."
            )
        by_name = {name: value for names, value in zip(drafts, acceptance, strict=False) for name in names}
        strategies = {name: with_acceptance(own, by_name, "--acceptance") for name, own in strategies.items()}
    return Question(architecture, strategies, hardware, workload, lengths, models, found, sweep)


def _predict_conversion(
    config: Path, num_nodes: int, processors: int, network: float, store: float, out: Output
) -> None:
    """Print how long a conversion takes on 1, 2, 4, ... nodes, and what bounds it: a row for each codec and number.

    Args:
        config: the model's config.json.
        num_nodes: at most.
        processors: of a node.
        network: of a node, GB/s.
        store: of the shared folder, GB/s.
        out: where to print.

    Raises:
        MxconvError: the model is not known.
    """
    from mxconv.arch.model_sizes import ModelSizes
    from mxconv.cost.conversion_time import GB, PASSES, Cluster, conversion_time
    from mxconv.cost.counts import count_parameters

    num_bytes = 2 * count_parameters(ModelSizes.from_file(config)).total
    counts = [2**n for n in range(num_nodes.bit_length()) if 2**n < num_nodes] + [num_nodes]
    rows = []
    for codec in PASSES:
        for count in counts:
            found = conversion_time(num_bytes, codec, Cluster(count, processors, network * GB, store * GB))
            keys = ("seconds", "bottleneck", "seconds_by_resource", "last_hash_seconds")
            rows.append({"codec": codec, "num_nodes": count} | {key: getattr(found, key) for key in keys})
    out.table(CLUSTER_TABLE, rows)
    out.line(
        f"{format_bytes(num_bytes)} of 16-bit weights; {processors} processors and {network:g} GB/s a node, {store:g} "
        "GB/s from a folder that all share. A model on paper: docs/scale.md."
    )
    out.json({"num_bytes": num_bytes, "predictions": rows})
