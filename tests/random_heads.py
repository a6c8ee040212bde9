"""Medusa's heads with random weights, as torch modules whose state dicts are the files of the Hub."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch.nn import Linear, Module, ModuleList, Sequential
from torch.nn.functional import silu

from mxconv.engine.decoder import Decoder

DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


class Block(Module):
    """A residual block."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + silu(self.linear(x))


class PlainHeads(ModuleList):
    """Medusa's own layout: heads that end with their output matrix, or share the target's."""

    def __init__(self, hidden_size: int, vocab_size: int, num_heads: int, num_blocks: int, has_outputs: bool) -> None:
        super().__init__()
        for _ in range(num_heads):
            output = [Linear(hidden_size, vocab_size, bias=False)] if has_outputs else []
            self.append(Sequential(*(Block(hidden_size) for _ in range(num_blocks)), *output))

    def heads(self) -> Iterator[Module]:
        yield from self


class VllmHeads(Module):
    """The layout that vLLM reads, with or without biases, where heads may share an output matrix."""

    def __init__(
        self, hidden_size: int, vocab_size: int, num_heads: int, num_blocks: int, has_bias: bool, num_outputs: int
    ) -> None:
        super().__init__()
        self.blocks = ModuleList()
        for _ in range(num_heads):
            block = Module()
            block.layers = ModuleList(Linear(hidden_size, hidden_size, bias=has_bias) for _ in range(num_blocks))
            self.blocks.append(block)
        self.lm_heads = ModuleList(Linear(hidden_size, vocab_size, bias=False) for _ in range(num_outputs))

    def heads(self) -> Iterator[Any]:
        for number, block in enumerate(self.blocks):

            def head(x: torch.Tensor, block: Any = block, number: int = number) -> torch.Tensor:
                for layer in block.layers:
                    x = x + silu(layer(x))
                return self.lm_heads[min(number, len(self.lm_heads) - 1)](x)

            yield head


NUM_HEADS = 3


def random_heads(layout: str, target: dict[str, Any], num_heads: int, num_blocks: int) -> tuple[Any, dict[str, Any]]:
    """The module of a layout, and its config.json.

    Args:
        layout: "medusa", "medusa-shared", "vllm" or "vllm-shared".
        target: its config.json.
        num_heads: of the module.
        num_blocks: of each head.
    """
    size, vocab_size = target["hidden_size"], target["vocab_size"]
    if layout.startswith("vllm"):
        is_shared = layout == "vllm-shared"
        made = VllmHeads(size, vocab_size, num_heads, num_blocks, not is_shared, 1 if is_shared else num_heads)
        config = {"model_type": "medusa", "hidden_size": size, "vocab_size": vocab_size, "num_heads": num_heads}
        config |= {"num_hidden_layers": num_blocks, "truncated_vocab_size": vocab_size}
        return made, config | {"original_lm_head": is_shared, "medusa_fc_bias": not is_shared}
    module = PlainHeads(size, vocab_size, num_heads, num_blocks, layout == "medusa")
    return module, {"medusa_num_heads": 2, "medusa_num_layers": num_blocks}  # fewer, as some of the Hub say


def write_heads(
    folder: Path,
    layout: str,
    target: dict[str, Any],
    dtype: str = "F16",
    file: str = "model.safetensors",
    num_blocks: int = 1,
    **changes: Any,
) -> Any:
    """Write heads and return the module in float64, of the same rounded weights."""
    torch.manual_seed(len(layout))
    module, config = random_heads(layout, target, NUM_HEADS, num_blocks)
    with torch.no_grad():
        for parameter in module.parameters():  # the defaults guess much the same after everything
            parameter *= 4 if parameter.shape[0] == target["vocab_size"] else 1
    module = module.to(DTYPES[dtype]).eval()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config | {"base_model_name_or_path": "org/target"} | changes))
    if file.endswith(".pt"):
        torch.save(module.state_dict(), folder / file)
    else:
        safetensors.torch.save_file(module.state_dict(), folder / file)
    return module.double()


@torch.no_grad()
def torch_logits(module: Any, states: np.ndarray, tokens: np.ndarray, target: Decoder) -> list[np.ndarray]:
    """The logits of as many heads as there are tokens.

    Args:
        module: as `write_heads` returns it.
        states: (num_tokens, hidden_size) of the text but its last token.
        tokens: the last token of the text, and those after it.
        target: whose output matrix serves heads that have none.
    """
    state = torch.from_numpy(states[-1]).double()
    found = []
    for _, head in zip(tokens, module.heads(), strict=False):
        made = head(state)
        if len(made) == len(state):
            made = torch.from_numpy(target.head.rows(np.arange(target.config.vocab_size))).double() @ made
        found.append(made.numpy())
    return found


@torch.no_grad()
def fit_outputs(module: Any, texts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], target: Decoder) -> None:
    """Make the output matrix of each head the least squares of the target's logits, as many places later.

    `texts` are the tokens, the target's states (num_tokens, hidden_size) and its logits (num_tokens, vocab_size).
    """
    outputs = [[*head.modules()][-1] for head in module.heads()]
    for number, output in enumerate(outputs):
        taken: list[torch.Tensor] = []
        wanted: list[np.ndarray] = []
        hook = output.register_forward_pre_hook(lambda _, inputs, taken=taken: taken.append(inputs[0]))
        for tokens, states, logits in texts:
            for place in range(1, len(tokens) - number):
                torch_logits(module, states[:place], tokens[place : place + number + 1], target)
                wanted.append(logits[place + number])
        hook.remove()
        output.weight[:] = torch.linalg.lstsq(torch.stack(taken), torch.from_numpy(np.array(wanted)).double())[0].T
        if output.bias is not None:
            output.bias[:] = 0
