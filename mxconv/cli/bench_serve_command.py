"""`mxconv bench serve`: a server under load, as its clients see it."""

import os
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mxconv.cli.bench_options import print_machine
from mxconv.cli.common_options import Force, Json, KvBytes, MaxSequences, grouped, numbers_of
from mxconv.cli.decode_options import LevelOptions, PromptOptions, Runtime
from mxconv.cli.output import Output, check_outputs, progress_bars

if TYPE_CHECKING:
    from mxconv.bench.serving_speed import ServeResult, Waiting

MOST_CONCURRENCY = 1024


def _waiting(name: str) -> tuple[Any, ...]:
    def both(result: "ServeResult") -> tuple[float, float] | None:
        waiting: Waiting | None = getattr(result, name)
        return None if waiting is None else (waiting.median, waiting.p99)

    return (both, ".1f", 1e3)


TABLE = {
    "requests": ("load",),
    "drafts": (lambda result: "yes" if result.drafts else "no",),
    "ok": ("num_ok",),
    "failed": (lambda result: result.num_failed or None,),
    "tokens/s": ("tokens_per_second", ".1f"),
    "speed-up": ("speedup", ".2f"),
    "first token ms": _waiting("first_token"),
    "between tokens ms": _waiting("between_tokens"),
    "between chunks ms": _waiting("between_chunks"),
    "GB/s": ("read_bandwidth", ".1f"),
    "same tokens": ("identical",),
}


@grouped
def serve(
    package: Annotated[
        str | None, typer.Argument(help="The package to serve: a folder, or the Hub id or URL of one; or --url.")
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(help="Use a running `mxconv serve` instead.")] = None,
    plain_url: Annotated[str | None, typer.Option(help="A server of the target alone, beside --url.")] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at a time, joined by commas.")] = "1,2,4,8,16",
    rate: Annotated[
        str | None, typer.Option(help="Requests a second at random (Poisson) in place of --concurrency, by commas.")
    ] = None,
    num_requests: Annotated[int, typer.Option(min=1, max=10_000, help="Requests of each load.")] = 32,
    prompts: PromptOptions,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="Randomness; request i has the seed i.")] = 0,
    rounds: Annotated[int, typer.Option(min=1, help="How often each load is measured.")] = 1,
    levels: LevelOptions,
    max_sequences: MaxSequences = 16,
    kv_bytes: KvBytes = None,
    runtime: Runtime,
    plot: Annotated[
        Path | None, typer.Option("--plot", "--output", help="Draw throughput and waiting; .png or .svg.")
    ] = None,
    force: Force = False,
    json_output: Json = False,
) -> None:
    """Measure tokens a second and waiting times over HTTP.

    Drafts are on and off in turns; every request must have the same tokens at every load and both ways.
    """
    from mxconv.bench.machine import implementations, native_engine, this_machine

    # first: what follows needs native kernels
    (name,) = implementations([runtime.kernel] if runtime.kernel is not None else None)

    from mxconv.bench.decode_speed import DEFAULT_PROMPTS
    from mxconv.bench.http_client import Client, CompletionRequest
    from mxconv.bench.plots import write_serve_plot
    from mxconv.bench.rates import ReadBandwidth
    from mxconv.bench.serving_speed import OfferedLoad, bench_serving, serving
    from mxconv.errors import ModelError
    from mxconv.text.messages import num_chat_prompts

    if (package is None) == (url is None):
        raise typer.BadParameter("give either PACKAGE or --url")
    if plain_url is not None and url is None:
        raise typer.BadParameter("--plain-url needs --url")
    if rate is not None:
        loads = [OfferedLoad(rate=each) for each in sorted(set(numbers_of("--rate", rate, float, 1e-3, 1e4)))]
    else:
        sizes = numbers_of("--concurrency", concurrency, int, 1, MOST_CONCURRENCY)
        loads = [OfferedLoad(concurrency=each) for each in sorted(set(sizes))]
    check_outputs(force, [plot])
    texts = prompts.read(DEFAULT_PROMPTS)
    requests = [
        CompletionRequest(texts[i % len(texts)], prompts.max_new_tokens, i, temperature) for i in range(num_requests)
    ]
    engine = native_engine(name, runtime.threads)
    machine = this_machine(engine.num_threads)
    key = os.environ.get("MXCONV_API_KEY") or None
    flags = ["--kernel", name, "--threads", str(engine.num_threads), "--max-sequences", str(max_sequences)]
    flags += ["--kv-dtype", runtime.kv_dtype, "--weights", runtime.weights] + (
        [] if kv_bytes is None else ["--kv-bytes", str(kv_bytes)]
    )
    drafting = [*(word for one in levels.draft or () for word in ("--draft", one)), "--tree", levels.tree]
    drafting += [] if levels.levels is None else ["--levels", levels.levels]
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
        bandwidth = ReadBandwidth(engine) if all(client.is_here for client in clients.values()) else None
        with progress_bars("loads") as progress:
            results = bench_serving(clients, loads, requests, rounds, bandwidth, progress)
    out = Output(json_output)
    print_machine(out, machine, machine.compiler)
    out.table(TABLE, results)
    for error in sorted({error for r in results for error in r.errors}):
        out.line(f"failed: {error}")
    out.line(
        f"{' <- '.join(names)}; {num_requests} requests a load for {prompts.max_new_tokens} tokens each; "
        "milliseconds: median, 99th percentile"
    )
    out.write(plot, lambda path: write_serve_plot(results, names, machine, path))
    own = {"implementation": name, "kv_dtype": runtime.kv_dtype} if url is None else {}
    out.json(
        {"machine": asdict(machine), "implementation": None, "kv_dtype": None}
        | own
        | {"url": url, "target": names[0], "levels": names, "num_requests": num_requests, "rounds": rounds}
        | {"num_chat_prompts": num_chat_prompts(texts), "results": [asdict(result) for result in results]}
    )
    if different := [r for r in results if not r.identical]:
        at = "; ".join(f"{r.load} {'with' if r.drafts else 'without'} drafts" for r in different)
        raise ModelError(
            f"{package or url}: tokens differ at {at} from those of the first answers; none may. "
            "Please report this as a defect."
        )
