"""The loop that trains every kind of draft: one process, or many of `torchrun`, with the same losses.

A step's windows are those of the whole batch, and its loss is their mean. So the number of processes changes rounding
alone, and a run that was killed goes on with the losses that it would have had: its state is one safetensors file with
the model, the optimizer's averages and the number of steps.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from mxconv.errors import MxconvError
from mxconv.train.training_task import TrainingTask
from mxconv.train.windows import TrainingStage, stage_of

BETAS, MOST_NORM = (0.9, 0.95), 1.0
STATE, LOG = "state.safetensors", "losses.jsonl"
WHOLE = StateDictOptions(full_state_dict=True)  # offloaded, all but the first process would get nothing
MODEL, OPTIMIZER = "model/", "optimizer/"  # the latter with the average's name before the parameter's


@dataclass(frozen=True)
class StepReport:
    """One step."""

    step: int  # from 0 on
    num_steps: int  # of all stages
    stage: str  # its name
    loss: float  # the mean of all parts, in nats
    parts: dict[str, float]  # the losses by name


def accelerator(mixed_precision: Literal["no", "bf16"] = "no") -> Accelerator:
    """This process among those of the launcher, on a GPU where there is one."""
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=mixed_precision)


def fit(
    task: TrainingTask,
    model: nn.Module,
    stages: Sequence[TrainingStage],
    folder: Path,
    seed: int,
    run: str,
    accelerator: Accelerator,
    save_every: int = 100,
    on_step: Callable[[StepReport], None] = lambda report: None,
) -> dict[str, Tensor] | None:
    """Train from the beginning, or from the state in `folder`.

    Args:
        task: whose losses are minimized.
        model: what `task.model` made, the same in every process.
        stages: one after another.
        folder: for the state and the losses, a line a step; made if it is not there.
        seed: of the order of windows.
        run: what distinguishes this training from others, besides stages and seed.
        accelerator: this process.
        save_every: steps.
        on_step: called after every step, in every process.

    Returns:
        The trained parameters by name; None in all processes but the main one.

    Raises:
        MxconvError: the folder holds another training, a batch cannot be shared evenly, or a loss is not finite.
    """
    for stage in stages:
        if stage.batch_size % accelerator.num_processes:
            raise MxconvError(
                f"batch size: {stage.batch_size} windows for {accelerator.num_processes} processes; a multiple is "
                "required. Choose another size."
            )
    num_steps = sum(stage.num_steps for stage in stages)
    run = _fingerprint(run, stages, seed)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]  # these do not decay
    decays = (matrices, task.weight_decay), (vectors, 0.0)
    groups = [{"params": parameters, "weight_decay": decay} for parameters, decay in decays if parameters]
    optimizer = torch.optim.AdamW(groups, betas=BETAS)
    model, optimizer = accelerator.prepare(model, optimizer)
    if accelerator.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    first = load_state(folder / STATE, model, optimizer, run)
    if accelerator.is_main_process:  # forget what was logged after the state
        lines = (folder / LOG).read_text(encoding="utf-8").splitlines(keepends=True) if first else []
        (folder / LOG).write_text("".join(lines[:first]), encoding="utf-8")
    for step in range(first, num_steps):
        stage, place = stage_of(stages, step)
        rows = torch.from_numpy(stage.rows(place, seed)).long()
        mine = rows[accelerator.process_index :: accelerator.num_processes].to(accelerator.device)
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate(place)
        torch.manual_seed(seed + step)  # what a task draws is the same in every process, and after a kill
        with accelerator.autocast():  # as its `mixed_precision` says
            losses = task.losses(model, mine, stage.windows)
        optimizer.zero_grad()
        accelerator.backward(losses.mean())
        accelerator.clip_grad_norm_(model.parameters(), MOST_NORM)
        optimizer.step()
        means = accelerator.reduce(losses.detach().float(), "mean").tolist()
        report = StepReport(
            step, num_steps, stage.name, sum(means) / len(means), dict(zip(task.parts, means, strict=True))
        )
        if report.loss != report.loss or abs(report.loss) == float("inf"):
            raise MxconvError(
                f"{stage.name}, step {step}: a loss of {report.loss}; a finite one is required. Use a lower learning "
                f"rate and --force; the last state is kept in {folder}."
            )
        if accelerator.is_main_process:
            line = {"step": step, "stage": stage.name, "learning_rate": stage.learning_rate(place)}
            with (folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line | {"loss": report.loss, "parts": report.parts}) + "\n")
        on_step(report)
        if (step + 1) % save_every == 0 or step + 1 == num_steps:
            save_state(folder / STATE, model, optimizer, step + 1, run, accelerator.is_main_process)
    tensors = model_tensors(model)
    return tensors if accelerator.is_main_process else None


def _fingerprint(run: str, stages: Sequence[TrainingStage], seed: int) -> str:
    digest = hashlib.sha256(f"{run}\0{seed}".encode())
    for stage in stages:
        numbers = stage.name, stage.num_steps, stage.batch_size, stage.peak, stage.last, stage.windows.num_prompt_tokens
        digest.update(repr((numbers, stage.windows.token_ids.shape)).encode())
        digest.update(stage.windows.token_ids.tobytes())
    return digest.hexdigest()


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name, gathered from all processes that share them."""
    found = get_model_state_dict(model, options=WHOLE)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def save_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, run: str, is_writer: bool
) -> None:
    """Write the state beside the last one, then in its place; every process takes part, and one of them writes.

    `step` counts the steps that are done; `run` identifies the training for `load_state`.
    """
    averages: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    tensors = {MODEL + name: tensor for name, tensor in model_tensors(model).items()}
    for name, of_parameter in averages["state"].items():
        tensors |= {f"{OPTIMIZER}{kind}/{name}": tensor for kind, tensor in of_parameter.items()}
    if is_writer:
        beside = path.with_suffix(".new")
        whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
        save_file(whole, beside, metadata={"step": str(step), "run": run})
        beside.replace(path)


def load_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, run: str) -> int:
    """Restore what `save_state` wrote.

    Returns:
        The steps that are done; 0 where there is no file.

    Raises:
        MxconvError: the file is of another training.
    """
    if not path.is_file():
        return 0
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        if metadata.get("run") != run or not metadata.get("step", "").isdecimal():
            raise MxconvError(
                f"{path}: the state of another training; one with the same target, texts and options is required to "
                "go on. Give the same ones, or --force to begin again."
            )
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
    weights = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    set_model_state_dict(model, weights, options=WHOLE)
    averages: dict[str, Any] = get_optimizer_state_dict(model, optimizer, options=WHOLE)
    for place, tensor in tensors.items():
        if place.startswith(OPTIMIZER):
            kind, _, name = place.removeprefix(OPTIMIZER).partition("/")
            averages["state"][name][kind] = tensor
    set_optimizer_state_dict(model, optimizer, averages, options=WHOLE)
    return int(metadata["step"])
