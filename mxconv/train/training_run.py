"""One run of a training, from files of text to the folder that the draft becomes."""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.regular_file import sha256_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.errors import ModelError, MxconvError
from mxconv.progress import Progress
from mxconv.report.charts import Chart, Series, write_picture
from mxconv.text.tokenizer import Tokenizer
from mxconv.train.training_loop import LOG, StepReport, accelerator, fit
from mxconv.train.training_task import FrozenTarget, TrainingTask
from mxconv.train.windows import TrainingStage, text_windows, written_windows

LONGEST = 4096  # tokens of a window by default
LATER_SHARE = 2 / 7  # of all steps, those of the second stage: 5 to 2, as arXiv 2404.19124 has them
LATER_RATE, LAST_RATE = 0.1, 0.1  # of the second stage to the first; that a stage ends with to its highest
SMOOTHED = 0.02  # of all steps are averaged in the picture of losses
PICTURE = "losses.svg"


@dataclass(frozen=True)
class TrainingRun:
    """A run; `OUTPUT.training` beside the folder that the draft becomes holds its state meanwhile.

    Args:
        texts: files of text for the first stage.
        target: the folder of the model that it will draft for, in 16 bits.
        output: the folder or the .safetensors file that the draft becomes.
        generated: the target's own text, for the second stage or alone.
        steps: of all stages.
        batch_tokens: of a step.
        length: of a window of the first stage; None takes what the target has positions for, 4,096 at most.
        learning_rate: the highest of the first stage.
        seed: of weights and order.
        mixed_precision: what products are computed in.
        save_every: steps between states.
        progress: what to show while texts are read.
        force: replace the output, and begin again.
        least_length: of a window, which the kind of draft needs.
    """

    texts: Sequence[Path]
    target: Path
    output: Path
    generated: Path | None
    steps: int
    batch_tokens: int
    length: int | None
    learning_rate: float
    seed: int
    mixed_precision: Literal["no", "bf16"]
    save_every: int
    progress: Callable[[], AbstractContextManager[Progress]]
    force: bool = False
    least_length: int = 8

    @cached_property
    def config(self) -> ModelConfig:
        """The target's description, or an error where mxconv does not know its family."""
        return describe_file(self.target / "config.json")

    @cached_property
    def dtype(self) -> torch.dtype:
        """The type of the target's matrices.

        Raises:
            MxconvError: the folder holds no 16-bit model.
        """
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
    def stages(self) -> list[TrainingStage]:
        """The given text, and then the target's own where there is some; or that alone.

        Raises:
            MxconvError: a file is no text of this target's tokens, windows are too long, too short or none.
        """
        if self.output.exists() and not self.force:
            raise MxconvError(f"{self.output}: exists; nothing is overwritten. Choose another name, or give --force.")
        if not self.output.parent.is_dir():
            raise MxconvError(
                f"{self.output}: its folder {self.output.parent} does not exist; it must. Create it first."
            )
        least, num_positions = self.least_length, self.config.max_position_embeddings
        length = self.length or min(LONGEST, num_positions)
        if not least <= length <= num_positions:
            raise MxconvError(
                f"--length {length}: {least}, what this draft needs, to {num_positions}, the target's positions, is "
                "required."
            )
        if not self.texts and not self.generated:
            raise MxconvError("no texts were given; files of text or --generated are required. Name some.")
        stages = []
        later = round(self.steps * LATER_SHARE) if self.generated else 0
        if self.texts:
            with self.progress() as progress:
                windows = text_windows(self.texts, Tokenizer.from_folder(self.target), length, progress)
            batch, peak = max(self.batch_tokens // length, 1), self.learning_rate
            stages.append(TrainingStage("text", windows, max(self.steps - later, 1), batch, peak, LAST_RATE * peak))
        if self.generated:
            written = written_windows(self.generated, self.config.vocab_size)
            num_new = written.length - written.num_prompt_tokens
            if num_new < least or written.length > num_positions:
                raise MxconvError(
                    f"{self.generated}: texts of {written.length} tokens, {num_new} of them new; at most "
                    f"{num_positions}, and {least} new ones are required. Generate others."
                )
            peak, steps = (LATER_RATE, max(later, 1)) if stages else (1, self.steps)
            batch, peak = max(self.batch_tokens // written.length, 1), peak * self.learning_rate
            stages.append(TrainingStage("own text", written, steps, batch, peak, LAST_RATE * peak))
        return stages

    def begin(self, make_task: Callable[[FrozenTarget], TrainingTask]) -> "BegunTraining":
        """Load the target, and make the draft's task and model."""
        stages, _ = self.stages, self.dtype  # errors come before the target is loaded
        process = accelerator(self.mixed_precision)
        task = make_task(FrozenTarget(self.target, process.device))
        torch.manual_seed(self.seed)
        return BegunTraining(self, stages, process, task, task.model())


@dataclass(frozen=True)
class BegunTraining:
    """A run whose target is loaded, in one of the processes that share it."""

    run: TrainingRun
    stages: list[TrainingStage]
    process: Accelerator
    task: TrainingTask
    model: nn.Module

    def plan(self) -> dict[str, Any]:
        """What it takes."""
        num_tokens = sum(stage.num_tokens for stage in self.stages)
        return {
            "draft": str(self.run.output),
            "num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "num_steps": sum(stage.num_steps for stage in self.stages),
            "num_tokens": num_tokens,
            "num_different_tokens": sum(stage.windows.token_ids.size for stage in self.stages),
            "flops": self.task.flops_per_token(self.model) * num_tokens,
            "memory_bytes": self.task.num_bytes(self.model),
        }

    def train(self, options: str, on_step: Callable[[StepReport], None]) -> bool:
        """Train, and put the draft in its place; whether this is the process that did.

        Args:
            options: of the kind of draft; a run that was killed goes on only with the same ones.
            on_step: called after each step.
        """
        run, process = self.run, self.process
        if run.force and process.is_main_process:
            shutil.rmtree(run.work, ignore_errors=True)
        process.wait_for_everyone()
        options = f"{options} {run.mixed_precision} {weights_of(run.target)}"
        how = run.work, run.seed, options, process, run.save_every, on_step
        tensors = fit(self.task, self.model, self.stages, *how)
        if tensors is None:
            return False
        made = run.work / "draft"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        self.task.write(tensors, made)
        for path in made.iterdir():  # safetensors lets nobody but the owner read what it saves
            path.chmod(0o666 & made.stat().st_mode)
        shutil.copyfile(run.work / LOG, made / LOG)
        write_picture(made / PICTURE, f"{run.output.name} for {run.target.name}", [loss_chart(made / LOG)])
        if run.output.suffix == ".safetensors":  # a file and no folder: its losses go beside it
            for name in (LOG, PICTURE):
                (made / name).replace(run.output.with_name(f"{run.output.stem}.{name}"))
            made /= "draft.safetensors"
        if run.output.exists():  # with --force: the old draft goes when the new one is there
            run.output.replace(run.work / "replaced")
        made.replace(run.output)
        shutil.rmtree(run.work)
        return True


def weights_of(folder: Path) -> str:
    """Hashes that identify the weights of a model."""
    return " ".join(sha256_file(path) for path in sorted(folder.glob("*.safetensors")))


def loss_chart(log: Path) -> Chart:
    """The losses of a training by part, each smoothed over the 2% of all steps before, with its stages marked.

    Args:
        log: a line of JSON a step, with `stage` and `parts`.
    """
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    steps, series = [line["step"] for line in lines], []
    width = max(round(SMOOTHED * len(lines)), 1)
    for part in lines[0]["parts"]:
        losses = [line["parts"][part] for line in lines]
        sums, ends = np.cumsum([0.0, *losses]), np.arange(1, len(losses) + 1)
        begins = np.maximum(ends - width, 0)
        smooth = [float(mean) for mean in (sums[ends] - sums[begins]) / (ends - begins)]
        label = f"{part}: {smooth[-1]:.2f}"
        series += [Series(label, list(zip(steps, losses, strict=True)), "faint")]
        series.append(Series(label, list(zip(steps, smooth, strict=True))))
    begun = [line for before, line in pairwise([{"stage": ""}, *lines]) if line["stage"] != before["stage"]]
    stages = {line["step"]: line["stage"] for line in begun}
    return Chart("", "step", "loss (nats a token)", series, divisions=stages)
