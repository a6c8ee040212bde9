"""Tokens a second and memory on a GPU: a model in BF16, as exact BSFP, and as BSFP with its 4-bit draft, in turns.

    mxconv quantize MODEL -o package --codec bsfp
    python examples/gpu_decode.py MODEL package prompts.jsonl --chat

`compiled` is transformers' own way: a static cache, and torch.compile. The others decode by CUDA graphs. Each text is
decoded once by every contender before it counts. A text that differs from that of BF16 by graphs is named with its
first such token and the margins of both choices: torch rounds otherwise in another kernel, though weights are the same.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from mxconv.gpu.gpu_experts import GpuExperts
from mxconv.gpu.gpu_linear import GpuLinear
from mxconv.interop.transformers import drafts, load_package
from mxconv.interop.transformers.custom_generate import GenerateLoop, GreedyChoice, first_difference
from mxconv.interop.transformers.graphed_target import GraphedTarget, PassGraphs
from mxconv.text.messages import as_chat, read_prompts

Choices = list[GreedyChoice]


def by_graphs(model: Any, num_positions: int, choices: Choices) -> Callable[..., Any]:
    """Plain decoding by graphs, for `generate(custom_generate=...)`; it puts its choices into a list."""
    graphs = PassGraphs(model, num_positions)

    def generate(
        model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any, generation_config: Any,
        streamer: Any = None, synced_gpus: bool = False, **kwargs: Any
    ) -> Any:  # fmt: skip
        target = GraphedTarget(model, input_ids, kwargs, graphs)
        loop = GenerateLoop(target, logits_processor, stopping_criteria, generation_config, input_ids)
        loop.run(None)
        choices[:] = loop.choices
        return loop.output()

    return generate


def contender(model: Any, **arguments: Any) -> Callable[[torch.Tensor, int], int]:
    """Decode a text greedily; returns the number of new tokens."""

    def decode(prompt: torch.Tensor, most: int) -> int:
        output = model.generate(prompt, do_sample=False, max_new_tokens=most, **arguments)
        return int(output.shape[1] - prompt.shape[1])

    return decode


def table(
    contenders: Mapping[str, Callable[[torch.Tensor, int], int]],
    gigabytes: Mapping[str, float],
    choices: Mapping[str, Choices],
    prompts: list[torch.Tensor],
    most: int,
) -> None:
    spent, counts = dict.fromkeys(contenders, 0.0), dict.fromkeys(contenders, 0)
    for number, prompt in enumerate(prompts):
        for is_warm in (False, True):
            for name, decode in contenders.items():
                begin = time.perf_counter()
                count = decode(prompt, most)
                if prompt.device.type == "cuda":
                    torch.cuda.synchronize()
                spent[name] += (time.perf_counter() - begin) * is_warm
                counts[name] += count * is_warm
        for name, mine in choices.items():
            if difference := first_difference(mine, choices["BF16"]):
                print(f"text {number}, {name} in place of BF16: {difference}")
    rates = {name: counts[name] / spent[name] for name in contenders}
    print("| contender | GB of weights | tokens | tokens/s | times the first |\n|---|---|---|---|---|")
    first = next(iter(rates.values()))
    for name, rate in rates.items():
        print(f"| {name} | {gigabytes[name]:.2f} | {counts[name]} | {rate:.1f} | {rate / first:.2f} |")


def main(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="The package's model: a folder of transformers.")],
    package: Annotated[Path, typer.Argument(help="A BSFP package of it.")],
    prompts: Annotated[Path, typer.Argument(help="A file of prompts.")],
    device: Annotated[str, typer.Option(help="A GPU.")] = "cuda",
    max_new_tokens: Annotated[int, typer.Option(help="Of a text, at most.")] = 128,
    num_prompts: Annotated[int, typer.Option(help="The first so many.")] = 8,
    num_draft_tokens: Annotated[int, typer.Option(help="That the draft proposes a round.")] = 4,
    chat: Annotated[bool, typer.Option("--chat", help="Put prompts into the chat template.")] = False,
    residuals: Annotated[Literal["device", "host"], typer.Option(help="On the device, or host.")] = "device",
    compiled: Annotated[bool, typer.Option(help="Have transformers compile the model too.")] = True,
) -> None:
    """Print the table."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    read = read_prompts(prompts, chat)[:num_prompts]
    if chat:
        whole = [
            tokenizer.apply_chat_template(as_chat(each), add_generation_prompt=True, tokenize=False) for each in read
        ]
        texts = [tokenizer(each, add_special_tokens=False)["input_ids"] for each in whole]
    else:
        texts = [tokenizer(each)["input_ids"] for each in read]
    ids = [torch.tensor([text], device=device) for text in texts]
    num_positions = max(map(len, texts)) + max_new_tokens
    dense, packed = (AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).eval() for _ in range(2))
    dense.to(device)
    bytes_of_dense = sum(each.nbytes for each in dense.parameters())
    load_package(packed, package, device, residuals)
    bytes_of_packed = sum(each.nbytes for each in packed.parameters())
    for each in packed.modules():
        if isinstance(each, GpuLinear):
            bytes_of_packed += each.weight_on_device.num_bytes
        elif isinstance(each, GpuExperts):
            bytes_of_packed += sum(stack.num_bytes for stack in (*each.matrices.first, each.matrices.second))
    choices: dict[str, Choices] = {"BF16": [], "BSFP": [], "BSFP with its draft": []}
    found = {
        "BF16": contender(dense, custom_generate=by_graphs(dense, num_positions, choices["BF16"])),
        "BSFP": contender(packed, custom_generate=by_graphs(packed, num_positions, choices["BSFP"])),
    }
    if compiled:
        found = {"BF16, compiled": contender(dense, cache_implementation="static")} | found
    with drafts(package, num_draft_tokens=[num_draft_tokens], device=device, graphs=True) as own:
        with_draft = contender(packed, custom_generate=own)

        def drafted(prompt: torch.Tensor, most: int) -> int:
            count = with_draft(prompt, most)
            assert own.last is not None
            choices["BSFP with its draft"][:] = own.last.choices
            return count

        found["BSFP with its draft"] = drafted
        gigabytes = {name: (bytes_of_packed if "BSFP" in name else bytes_of_dense) / 1e9 for name in found}
        table(found, gigabytes, choices, ids, max_new_tokens)


if __name__ == "__main__":
    typer.run(main)
