"""`mxconv bench serve`: a server under load, as its clients see it."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.bench_options import JSON, THREADS, print_machine
from mxconv.cli.completion import kernels
from mxconv.cli.decode_options import Draft, KvDtype, Levels, System, TreeSize, check_system
from mxconv.cli.output import console, print_json, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.machine import Machine
    from mxconv.bench.serving.asked import Asked
    from mxconv.bench.serving.load import Load
    from mxconv.bench.serving.result import ServeResult, Waiting

MOST_CONCURRENCY = 1024


def serve(
    package: Annotated[
        str | None, typer.Argument(help="The package to serve: a folder, or the Hub id or URL of one; or --url.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Ask a running `mxconv serve` instead.")] = None,
    plain_url: Annotated[str | None, typer.Option(help="With --url: one that serves the target alone.")] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at a time, joined by commas.")] = "1,2,4,8,16",
    rate: Annotated[
        str | None, typer.Option(help="Instead: requests a second that arrive at random (Poisson), by commas.")
    ] = None,
    num_requests: Annotated[int, typer.Option(min=1, max=10_000, help="Requests of each load.")] = 32,
    prompts: Annotated[
        Path | None,
        typer.Option(help="A .jsonl file, `prompt` or `messages` a line, asked in turn; a few by default."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Ask /v1/chat/completions, in the model's chat template.")
    ] = False,
    system: System = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 64,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="Of draws; request number i has the seed i.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each load is measured.")] = 1,
    levels: Levels = None,
    draft: Draft = None,
    tree: TreeSize = "auto",
    max_sequences: Annotated[int, typer.Option(min=1, max=1024, help="Sequences that decode at a time.")] = 16,
    kv_bytes: Annotated[int | None, typer.Option(min=1, help="For keys and values of all sequences.")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="Native implementation; MXCONV_KERNEL sets a default.", autocompletion=kernels)
    ] = None,
    threads: THREADS = None,
    kv_dtype: KvDtype = "fp32",
    plot: Annotated[
        Path | None, typer.Option("--plot", "--output", help="Draw throughput and waiting; .png or .svg.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a picture that exists.")] = False,
    json_output: JSON = False,
) -> None:
    """Tokens a second and waiting times over HTTP.

    With drafts and without, in turns; every request must have the same tokens at every load and both ways.
    """
    from mxconv.bench.engine import implementations

    (name,) = implementations([kernel] if kernel is not None else None)  # first: what follows needs native kernels

    from mxconv.bench.decoding import BANDWIDTH_CACHES
    from mxconv.bench.machine import last_level_cache_bytes, this_machine
    from mxconv.bench.prompts import DEFAULT_PROMPTS
    from mxconv.bench.rates import ReadBandwidth
    from mxconv.bench.serving.asked import Asked
    from mxconv.bench.serving.client import Client
    from mxconv.bench.serving.measuring import bench_serving
    from mxconv.bench.serving.process import serving
    from mxconv.bench.serving.serve_plot import write_serve_plot
    from mxconv.errors import ModelError
    from mxconv.kernels.engine import choose_engine
    from mxconv.report.output_file import check_output, write_output
    from mxconv.report.picture import check_suffix
    from mxconv.speculation.prompts import given_prompts
    from mxconv.text.messages import num_chat_prompts

    check_system(system, chat)
    if (package is None) == (url is None):
        raise typer.BadParameter("give either PACKAGE or --url")
    if plain_url is not None and url is None:
        raise typer.BadParameter("--plain-url needs --url")
    loads = _loads(concurrency, rate)
    if plot is not None:
        check_suffix(plot)
        check_output(plot, force)
    texts = given_prompts(prompts, DEFAULT_PROMPTS, chat, system)
    requests = [Asked(texts[i % len(texts)], max_new_tokens, i, temperature) for i in range(num_requests)]
    engine = choose_engine(name, threads)
    assert engine is not None
    machine = this_machine(engine.num_threads)
    key = os.environ.get("MXCONV_API_KEY") or None
    flags = ["--kernel", name, "--threads", str(engine.num_threads), "--max-sequences", str(max_sequences)]
    flags += ["--kv-dtype", kv_dtype] + ([] if kv_bytes is None else ["--kv-bytes", str(kv_bytes)])
    drafting = [*(word for one in draft or () for word in ("--draft", one)), "--tree", tree]
    drafting += [] if levels is None else ["--levels", levels]
    with ExitStack() as stack:
        drafted = Client(url or stack.enter_context(serving(package or "", [*flags, *drafting])), key)
        names = drafted.levels()
        clients = {len(names) > 1: drafted}
        if plain_url is not None:
            clients[False] = Client(plain_url, key)
            if (plain := clients[False].levels()) != names[:1]:
                raise ModelError(f"--plain-url {plain_url}: levels {', '.join(plain)}; {names[0]} alone is required.")
        elif package is not None and len(names) > 1:
            clients[False] = Client(stack.enter_context(serving(package, [*flags, "--levels", names[0]])), key)
        bandwidth = None
        if all(client.is_here for client in clients.values()):
            bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
        with progress_bars("loads") as progress:
            results = bench_serving(clients, loads, requests, rounds, bandwidth, progress)
    _print_table(machine, names, requests, results, json_output)
    if plot is not None:
        write_output(plot, lambda path: write_serve_plot(results, names, machine, path))
    if json_output:
        members: dict[str, Any] = {"machine": asdict(machine), "implementation": name if url is None else None}
        members |= {"kv_dtype": kv_dtype if url is None else None}
        members |= {"url": url, "target": names[0], "levels": names, "num_requests": num_requests, "rounds": rounds}
        members["num_chat_prompts"] = num_chat_prompts(texts)
        print_json({**members, "results": [asdict(result) for result in results]})
    if different := [_mode(result.load, result.drafts) for result in results if not result.identical]:
        raise ModelError(
            f"{package or url}: tokens differ at {'; '.join(different)} from those of the first answers; none may. "
            "Please report this as a defect."
        )


def _mode(load: str, drafts: bool) -> str:
    return f"{load} {'with' if drafts else 'without'} drafts"


def _loads(concurrency: str, rate: str | None) -> "list[Load]":
    """Ascending, each once."""
    from mxconv.bench.serving.load import ClosedLoop, Poisson

    if rate is not None:
        return [Poisson(number) for number in _numbers("--rate", rate, 1e-3, 1e4)]
    numbers = _numbers("--concurrency", concurrency, 1, MOST_CONCURRENCY)
    if any(number != int(number) for number in numbers):
        raise typer.BadParameter(f"--concurrency: {concurrency!r}; whole numbers are required.")
    return [ClosedLoop(int(number)) for number in numbers]


def _numbers(flag: str, text: str, least: float, most: float) -> list[float]:
    try:
        numbers = sorted({float(part) for part in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not all(least <= number <= most for number in numbers):
        raise typer.BadParameter(
            f"{flag}: {text!r}; numbers from {least:g} to {most:g}, joined by commas, are required."
        )
    return numbers


def _print_table(
    machine: "Machine",
    levels: Sequence[str],
    requests: "Sequence[Asked]",
    results: "Sequence[ServeResult]",
    json_output: bool,
) -> None:
    """A row a load, with and without drafts; milliseconds are medians and 99th percentiles."""
    from rich.table import Table

    table = Table(
        *("requests", "drafts", "ok", "failed", "tokens/s", "speed-up", "first token ms", "between tokens ms"),
        *("between chunks ms", "GB/s", "same tokens"),
    )
    for r in results:
        table.add_row(
            r.load,
            "yes" if r.drafts else "no",
            str(r.num_ok),
            str(r.num_failed or ""),
            f"{r.tokens_per_second:.1f}",
            "" if r.speedup is None else f"{r.speedup:.2f}",
            _milliseconds(r.first_token),
            _milliseconds(r.between_tokens),
            _milliseconds(r.between_chunks),
            "" if r.read_bandwidth is None else f"{r.read_bandwidth:.1f}",
            "yes" if r.identical else "NO",
        )
    out = console(json_output)
    print_machine(out, machine)
    out.print(table)
    for error in sorted({error for r in results for error in r.errors}):
        out.print(f"failed: {error}", markup=False, highlight=False)
    out.print(
        f"{' <- '.join(levels)}; {len(requests)} requests a load for {requests[0].max_tokens} tokens each; "
        "milliseconds: median, 99th percentile",
        markup=False,
        highlight=False,
    )


def _milliseconds(waiting: "Waiting | None") -> str:
    return "" if waiting is None else f"{1e3 * waiting.median:.1f}, {1e3 * waiting.p99:.1f}"
