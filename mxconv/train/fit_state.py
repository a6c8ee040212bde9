"""Where a training stands, in one safetensors file: the model, the optimizer's averages and the number of steps."""

from pathlib import Path
from typing import Any

import torch
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

WHOLE = StateDictOptions(full_state_dict=True)  # offloaded, all but the first process would get nothing
MODEL, OPTIMIZER = "model/", "optimizer/"  # the latter with the average's name before the parameter's


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters by name, gathered from all processes that share them."""
    found = get_model_state_dict(model, options=WHOLE)
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def save_state(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, run: str, is_writer: bool
) -> None:
    """Write the state beside the last one, then in its place; every process takes part.

    Args:
        path: the file.
        model: as it is trained, wrapped or not.
        optimizer: of its parameters.
        step: how many are done.
        run: what the training is, to be found again by `load_state`.
        is_writer: of one process.
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
    """Go on where `save_state` was.

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
