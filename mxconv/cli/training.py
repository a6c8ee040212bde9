"""Shared by the commands that train drafts: their options, stages from files, a dry run, and where the draft goes."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mxconv.cli.common_options import Json
from mxconv.cli.output import Output, progress_bars

if TYPE_CHECKING:
    import torch

    from mxconv.arch.config import ModelConfig
    from mxconv.train.training_task import FrozenTarget, TrainingTask
    from mxconv.train.windows import TrainingStage

LONGEST = 4096  # tokens of a window by default
LATER_SHARE = 2 / 7  # of all steps, those of the second stage: 5 to 2, as arXiv 2404.19124 has them
LATER_RATE, LAST_RATE = 0.1, 0.1  # of the second stage to the first; that a stage ends with to its highest


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


@dataclass(frozen=True)
class Training:
    """One run of a command; `OUTPUT.training` beside the folder that the draft becomes holds the state meanwhile."""

    texts: Sequence[Path]
    target: Path
    output: Path
    schedule: Schedule
    least_length: int = 8  # of a window

    @cached_property
    def config(self) -> "ModelConfig":
        """The target's description, or an error where mxconv does not know its family."""
        from mxconv.arch.families.registry import describe_file

        return describe_file(self.target / "config.json")

    @cached_property
    def dtype(self) -> "torch.dtype":
        """The type of the target's matrices.

        Raises:
            MxconvError: the folder holds no 16-bit model.
        """
        import torch

        from mxconv.checkpoint.source import open_checkpoint
        from mxconv.errors import ModelError

        with open_checkpoint(self.target) as checkpoint:
            dtypes = {tensor.dtype for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2}
        if not dtypes <= {"BF16", "F16"} or not dtypes:
            raise ModelError(
                f"{self.target}: weights in {', '.join(sorted(dtypes)) or 'no dtype'}; BF16 or F16 is required. Give "
                "the folder of the 16-bit model."
            )
        return torch.bfloat16 if "BF16" in dtypes else torch.float16

    @property
    def work(self) -> Path:
        return self.output.with_name(self.output.name + ".training")

    @cached_property
    def stages(self) -> "list[TrainingStage]":
        """The given text, and then the target's own where there is some; or that alone.

        Raises:
            MxconvError: a file is no text of this target's tokens, windows are too long, too short or none.
        """
        from mxconv.errors import MxconvError
        from mxconv.text.tokenizer import Tokenizer
        from mxconv.train.windows import TrainingStage, text_windows, written_windows

        if self.output.exists() and not self.schedule.force:
            raise MxconvError(f"{self.output}: exists; nothing is overwritten. Choose another name, or give --force.")
        if not self.output.parent.is_dir():
            raise MxconvError(
                f"{self.output}: its folder {self.output.parent} does not exist; it must. Create it first."
            )
        generated, batch_tokens, least = self.schedule.generated, self.schedule.batch_tokens, self.least_length
        steps, learning_rate = self.schedule.steps, self.schedule.learning_rate
        num_positions = self.config.max_position_embeddings
        length = self.schedule.length or min(LONGEST, num_positions)
        if not least <= length <= num_positions:
            raise MxconvError(
                f"--length {length}: {least}, what this draft needs, to {num_positions}, the target's positions, is "
                "required."
            )
        if not self.texts and not generated:
            raise MxconvError("no texts were given; files of text or --generated are required. Name some.")
        stages = []
        later = round(steps * LATER_SHARE) if generated else 0
        if self.texts:
            with progress_bars() as progress:
                windows = text_windows(self.texts, Tokenizer.from_folder(self.target), length, progress)
            batch, own_steps = max(batch_tokens // length, 1), max(steps - later, 1)
            stages.append(TrainingStage("text", windows, own_steps, batch, learning_rate, LAST_RATE * learning_rate))
        if generated:
            written = written_windows(generated, self.config.vocab_size)
            num_new = written.length - written.num_prompt_tokens
            if num_new < least or written.length > num_positions:
                raise MxconvError(
                    f"{generated}: texts of {written.length} tokens, {num_new} of them new; at most "
                    f"{num_positions}, and {least} new ones are required. Generate others."
                )
            peak, own_steps = (LATER_RATE * learning_rate, max(later, 1)) if stages else (learning_rate, steps)
            batch = max(batch_tokens // written.length, 1)
            stages.append(TrainingStage("own text", written, own_steps, batch, peak, LAST_RATE * peak))
        return stages

    def run(self, make_task: "Callable[[FrozenTarget], TrainingTask]", options: str) -> None:
        """Train, or say what that takes. A run that was killed goes on only with the same options."""
        import torch

        from mxconv.report.loss_curves import write_loss_curves
        from mxconv.train.training_loop import LOG, StepReport, accelerator, fit
        from mxconv.train.training_task import FrozenTarget

        schedule, stages, _ = self.schedule, self.stages, self.dtype  # errors come before the target is loaded
        process = accelerator(schedule.mixed_precision)
        task = make_task(FrozenTarget(self.target, process.device))
        torch.manual_seed(schedule.seed)
        model = task.model()
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        num_tokens = sum(stage.num_tokens for stage in stages)
        memory_bytes = task.num_bytes(model)
        result = {
            "draft": str(self.output),
            "num_parameters": num_parameters,
            "num_steps": sum(stage.num_steps for stage in stages),
            "num_tokens": num_tokens,
            "num_different_tokens": sum(stage.windows.token_ids.size for stage in stages),
            "flops": task.flops_per_token(model) * num_tokens,
            "memory_bytes": memory_bytes,
        }
        out = Output(schedule.json_output)
        if process.is_main_process:
            out.line(
                f"{num_parameters:,} parameters, {result['num_steps']:,} steps over {num_tokens:,} tokens "
                f"({result['num_different_tokens']:,} different ones), {result['flops']:.2g} FLOPs, "
                f"{memory_bytes / 1e9:.2g} GB"
            )
        if schedule.dry_run:
            out.json(result | {"dry_run": True})
            return
        if schedule.force and process.is_main_process:
            shutil.rmtree(self.work, ignore_errors=True)
        process.wait_for_everyone()
        begin = time.perf_counter()
        last: list[StepReport] = []
        with progress_bars("steps", one_bar=True) as progress:

            def show(report: StepReport) -> None:
                last[:] = [report]
                if process.is_main_process:
                    heads = " ".join(f"{loss:.2f}" for loss in report.parts.values())
                    progress(f"{report.stage}: loss {heads}", report.step + 1, report.num_steps)

            run = f"{options} {schedule.mixed_precision} {weights_of(self.target)}"
            tensors = fit(task, model, stages, self.work, schedule.seed, run, process, schedule.save_every, show)
        if tensors is None:
            return
        made = self.work / "draft"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        task.write(tensors, made)
        for path in made.iterdir():  # safetensors lets nobody but the owner read what it saves
            path.chmod(0o666 & made.stat().st_mode)
        shutil.copyfile(self.work / LOG, made / LOG)
        write_loss_curves(self.work / LOG, made / "losses.svg", f"{self.output.name} for {self.target.name}")
        if self.output.suffix == ".safetensors":  # a file and no folder: its losses go beside it
            for name in (LOG, "losses.svg"):
                (made / name).replace(self.output.with_name(f"{self.output.stem}.{name}"))
            made /= "draft.safetensors"
        if self.output.exists():  # with --force: the old draft goes when the new one is there
            self.output.replace(self.work / "replaced")
        made.replace(self.output)
        shutil.rmtree(self.work)
        seconds = time.perf_counter() - begin
        losses = last[0].parts if last else {}
        shown = ", ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        out.line(f"{self.output}: trained in {seconds:.0f} s; last losses: {shown}")
        out.json(result | {"dry_run": False, "losses": losses, "seconds": seconds})


def weights_of(folder: Path) -> str:
    """Hashes that identify the weights of a model."""
    from mxconv.checkpoint.hashing import sha256_file

    return " ".join(sha256_file(path) for path in sorted(folder.glob("*.safetensors")))
