"""Shared by the commands that train drafts: their options, a dry run, and what they print."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mxconv.cli.common_options import Json
from mxconv.cli.output import Output, progress_bars

if TYPE_CHECKING:
    from mxconv.train.training_loop import StepReport
    from mxconv.train.training_run import TrainingRun
    from mxconv.train.training_task import FrozenTarget, TrainingTask

Texts = Annotated[list[Path], typer.Argument(help="Files of plain text, or .jsonl with `text` or `prompt`.")]
Target = Annotated[Path, typer.Option(help="The model that it will draft for: a folder with 16-bit weights.")]
OutputFolder = Annotated[Path, typer.Option("--output", "-o", help="The folder that the draft becomes.")]


@dataclass(frozen=True)
class Schedule:
    """The options of one run of training, whatever the kind of draft."""

    generated: Annotated[
        Path | None, typer.Option(help="The target's own text, written by `train generate`, for the second stage.")
    ] = None
    steps: Annotated[int, typer.Option(min=1, help="Steps of all stages, 5 to 2 where there are two.")] = 21_000
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a step, of all processes together.")] = 65_536
    length: Annotated[int | None, typer.Option(min=8, help="Tokens of a window of the first stage; up to 4096.")] = None
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Highest learning rate of the first stage.")] = 1e-3
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and order.", rich_help_panel="Training")] = 0
    mixed_precision: Annotated[
        Literal["no", "bf16"],
        typer.Option(help="Multiply in BF16, except in the target's output head; faster where it is native."),
    ] = "no"
    save_every: Annotated[int, typer.Option(min=1, help="Steps between states to go on from.")] = 100
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and train nothing.")] = False
    force: Annotated[bool, typer.Option("--force", help="Replace the folder; begin again.")] = False
    json_output: Json = False


def training_run(
    texts: Sequence[Path], target: Path, output: Path, schedule: Schedule, least_length: int = 8
) -> "TrainingRun":
    """The run that the options describe."""
    from mxconv.train.training_run import TrainingRun

    options = {key: value for key, value in vars(schedule).items() if key not in ("dry_run", "json_output")}
    return TrainingRun(texts, target, output, **options, least_length=least_length, progress=progress_bars)


def train(
    run: "TrainingRun", schedule: Schedule, make_task: "Callable[[FrozenTarget], TrainingTask]", options: str
) -> None:
    """Train, or say what that takes. A run that was killed goes on only with the same options."""
    out, begin = Output(schedule.json_output), time.perf_counter()
    begun = run.begin(make_task)
    plan, is_main = begun.plan(), begun.process.is_main_process
    if is_main:
        out.line(
            f"{plan['num_parameters']:,} parameters, {plan['num_steps']:,} steps over {plan['num_tokens']:,} tokens "
            f"({plan['num_different_tokens']:,} different ones), {plan['flops']:.2g} FLOPs, "
            f"{plan['memory_bytes'] / 1e9:.2g} GB"
        )
    if schedule.dry_run:
        out.json(plan | {"dry_run": True})
        return
    losses: dict[str, float] = {}
    with progress_bars("steps", one_bar=True) as progress:

        def show(report: "StepReport") -> None:
            losses.update(report.parts)
            if is_main:
                heads = " ".join(f"{loss:.2f}" for loss in report.parts.values())
                progress(f"{report.stage}: loss {heads}", report.step + 1, report.num_steps)

        if not begun.train(options, show):
            return
    seconds = time.perf_counter() - begin
    shown = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
    out.line(f"{run.output}: trained in {seconds:.0f} s; last losses: {shown}")
    out.json(plan | {"dry_run": False, "losses": losses, "seconds": seconds})
