"""`mxconv cost`: what speculation is worth on given hardware, before anything is downloaded."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mxconv.cli.common_options import Force, Json, numbers_of, offered_hardware
from mxconv.cli.decode_options import Levels, Memory, names_of, planned
from mxconv.cli.output import FIRST, LOAD, Output, check_outputs

if TYPE_CHECKING:
    from mxconv.arch.model_sizes import ModelSizes
    from mxconv.cost.hardware import Hardware
    from mxconv.cost.levels import CostLevel


def cost(
    package: Annotated[Path | None, typer.Argument(help="A package, whose levels are the hierarchy.")] = None,
    config: Annotated[Path | None, typer.Option(help="A config.json in place of a package.")] = None,
    trace: Annotated[
        list[Path] | None, typer.Option(help="A file of `generate --trace`. Repeatable.", rich_help_panel=FIRST)
    ] = None,
    hardware: Annotated[
        str, typer.Option(help="A name, or a .toml file; `list` shows the names.", autocompletion=offered_hardware)
    ] = "this-machine",
    model: Annotated[
        Literal["speedup", "throughput", "accelerator", "roofline", "all"], typer.Option(help="Model that answers.")
    ] = "all",
    acceptance: Annotated[
        str | None,
        typer.Option(help="Probability that a draft token is accepted, by draft level, outermost first: 0.9,0.6."),
    ] = None,
    num_draft_tokens: Annotated[
        str | None, typer.Option(help="Draft tokens in each round, by draft level; the fastest by default.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=1 << 20, help="Sequences decoded together.")] = 1,
    context: Annotated[int, typer.Option(min=1, max=1 << 24, help="Positions in each cache.")] = 1024,
    window: Annotated[
        int, typer.Option(min=1, max=1 << 24, help="Window of sparse caches.", rich_help_panel=LOAD)
    ] = 64,
    kv_dtype: Annotated[
        Literal["fp32", "bf16", "fp16", "fp8", "int8"] | None,
        typer.Option(help="Type of the cache: bf16 by default, fp32 for a package, as mxconv keeps it."),
    ] = None,
    memory: Memory = None,
    levels: Levels = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Print the speed-up over acceptance and length.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw --figure into a .png or .svg file.")] = None,
    figure: Annotated[
        Literal["draft", "two-drafts", "throughput-maps", "roofline"], typer.Option(help="Figure of --plot.")
    ] = "draft",
    html: Annotated[Path | None, typer.Option(help="Write one HTML page with all tables and pictures.")] = None,
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
    if plot is not None or html is not None:  # an answer alone needs no pictures
        check_outputs(force, [plot], [html])

    from mxconv.cost.answers import MODELS, Question, cost_report
    from mxconv.cost.levels import Workload, with_acceptance
    from mxconv.cost.trace import read_trace
    from mxconv.report.cost_page import print_report

    if package is None and trace:
        raise typer.BadParameter("--trace: needs the package that it was made with, not --config")
    if package is None and memory is not None:
        raise typer.BadParameter("--memory: needs a package, not --config")
    architecture, strategies, drafts = _levels(package, config, names_of(levels))
    placed: dict[str, Any] = {}
    if package is not None and memory is not None:
        plan, rate = planned(package, levels, memory, out)
        placed = {"memory": asdict(plan) | {"read_gigabytes_per_second": rate / 1e9}}
        if plan.read_by(1):
            first = replace(next(iter(strategies.values()))[0], read_seconds=lambda rows: plan.read_by(rows) / rate)
            strategies = {name: [first, *own[1:]] for name, own in strategies.items()}
    traces = [read_trace(path) for path in trace or []]
    for run in traces:
        by_name = {level.name: level.acceptance for level in run.levels if level.num_proposed}
        rows = {level.name: level.rows_per_token for level in run.levels if level.num_proposed}
        source = f"trace {run.name}" + (", the rows of its trees counted" if max(rows.values(), default=1) > 1 else "")
        strategies = {name: with_acceptance(own, by_name, source, rows) for name, own in strategies.items()}
    if acceptance is not None:
        given = numbers_of("--acceptance", acceptance, float)
        if len(given) > len(drafts):
            raise typer.BadParameter(
                f"--acceptance: {len(given)} numbers for {len(drafts)} draft levels; at most one each is required."
            )
        by_name = {name: value for names, value in zip(drafts, given, strict=False) for name in names}
        strategies = {name: with_acceptance(own, by_name, "--acceptance") for name, own in strategies.items()}
    question = Question(
        architecture,
        strategies,
        _hardware(hardware),
        Workload(batch, context, kv_dtype or ("bf16" if package is None else "fp32"), window),
        None if num_draft_tokens is None else numbers_of("--num-draft-tokens", num_draft_tokens, float),
        MODELS if model == "all" else [model],
        traces,
        sweep,
    )
    report = cost_report(question) | placed
    print_report(report, out.console)
    if plot is not None:
        from mxconv.report.charts import write_picture
        from mxconv.report.cost_page import cost_charts

        out.write(plot, lambda path: write_picture(path, *cost_charts(question, figure)))
    if html is not None:
        from mxconv.report.cost_page import render_cost_page

        out.write_text(html, render_cost_page(question, report))
    out.json(report)


def _hardware(name: str) -> "Hardware":
    """A description by its name; this processor's own is measured in two seconds where nobody measured it longer."""
    from mxconv.cost.hardware import THIS_MACHINE, hardware_names, open_hardware, read_hardware

    if name != THIS_MACHINE or name in hardware_names():
        return open_hardware(name)
    from huggingface_hub import cached_assets_path

    from mxconv.bench.capability import measured_quickly

    return read_hardware(measured_quickly(cached_assets_path("mxconv", "hardware", "measured")))


def _levels(
    package: Path | None, config: Path | None, names: list[str] | None
) -> "tuple[ModelSizes, dict[str, list[CostLevel]], list[Sequence[str]]]":
    """The model, its strategies by name, and the names of each draft level, from the target on."""
    from mxconv.arch.model_sizes import ModelSizes
    from mxconv.cost.levels import FOUR_BIT, SMALL, strategies_of

    if package is None:
        assert config is not None
        architecture = ModelSizes.from_file(config)
        return architecture, strategies_of(architecture), [FOUR_BIT, (SMALL,)]
    from mxconv.cost.package_levels import package_levels, package_strategies
    from mxconv.drafts.loader import choose_levels
    from mxconv.package.package import Package

    with Package(package) as opened:
        chosen = [record.name for record in choose_levels(package, opened.manifest, names)]
        target, *drafts = [level for level in package_levels(opened) if level.name in chosen]
    assert target.architecture is not None
    return target.architecture, package_strategies([target, *drafts]), [(draft.name,) for draft in drafts]
