"""`mxconv bench decode --workers ray`: the prompts are split over the nodes of a cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mxconv.cli.bench_decode_tables import print_strategies
from mxconv.cli.bench_options import print_machine
from mxconv.cli.cluster_options import executors
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.decode_nodes import NodeResult
    from mxconv.bench.decode_result import DecodeResult
    from mxconv.text.messages import Prompt
    from mxconv.verification.decode_proof import DecodeSettings


def decode_on_nodes(
    workers: str, num_threads: int, settings: "DecodeSettings", prompts: "Sequence[Prompt]", json_output: bool
) -> "list[DecodeResult]":
    """Decode, and print a table of nodes and one of strategies, or the JSON object.

    Args:
        workers: as `--workers` has it.
        num_threads: workers of a cluster that is started here.
        settings: what is decoded.
        prompts: texts, or messages.
        json_output: print the object.
    """
    from mxconv.bench.decode_nodes import bench_nodes
    from mxconv.bench.machine import this_machine
    from mxconv.text.messages import num_chat_prompts

    with executors(workers, num_threads) as executor, progress_bars("prompts") as progress:
        results, nodes = bench_nodes(executor(), settings, prompts, progress)
    machine, out = this_machine(1), console(json_output)
    _print_nodes(nodes, json_output)
    print_strategies(out, results)
    out.print(f"greedy: plain decoding of {results[0].levels[0]}", markup=False, highlight=False)
    out.print("tokens/s: of all workers together, each with one thread; the command ran on", end=" ")
    print_machine(out, machine)
    if json_output:
        members: dict[str, Any] = {"machine": asdict(machine), "implementation": nodes[0].kernel}
        members["target"] = results[0].levels[0]
        members |= {"num_chat_prompts": num_chat_prompts(prompts), "kv_dtype": settings.kv_dtype}
        members |= {"results": [asdict(result) for result in results]}
        members |= {"forwards": [], "nodes": [asdict(node) for node in nodes]}
        print_json(members)
    return results


def _print_nodes(nodes: "Sequence[NodeResult]", json_output: bool) -> None:
    from rich.table import Table

    table = Table("node", "processor", "kernel", "workers", "prompts", "strategy", "tokens", "tokens/s", "acceptance")
    for node in nodes:
        cells = [node.node, node.cpu, node.kernel, str(node.num_workers), str(node.num_prompts)]
        for result in node.results:
            rates = ("" if rate is None else f"{rate:.3f}" for rate in result.acceptance_rates)
            table.add_row(
                *cells,
                result.strategy,
                str(result.num_tokens),
                f"{result.tokens_per_second:.1f}",
                ", ".join(rates),
                end_section=result is node.results[-1],
            )
            cells = [""] * len(cells)
    console(json_output).print(table)
