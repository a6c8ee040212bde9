"""mxconv's engine beside llama.cpp and OpenVINO on this machine, in one run: milliseconds a step, side by side.

    python examples/compare_peers.py FOLDER             # which keeps up to 8 GB of model files for the next run
    python examples/compare_peers.py FOLDER --rounds 1 --model examples/models/pylib-0.2m
    python examples/compare_peers.py FOLDER --prompts 512,1900 --rounds 3

Whole model: TinyLlama's shape with random weights (or --model), 1, 4 and 8 tokens in one step after a context of 32,
logits of all tokens. With --prompts instead: whole prompts of these lengths, logits of the last token, then steps of 1
and 8 tokens after the longest. OpenVINO's INT4 has float16 scales per 32 and quantizes activations to int8.

Every contender lives in a process of its own with two threads; in each round all take their turns, a sample of the
machine's read bandwidth before each and a pause before that, in which the threads of the last one fall asleep. Results
are compared before anything is timed. A ratio is that of one round; the table has medians, and tenths below and above;
GB/s is the machine's. Run it on a machine that does nothing else: llama.cpp's threads wait spinning for each other and
lose most where others run. The native kernels are required.

The peers are no dependencies; one that is not installed is left out. `pip install
optimum-intel nncf` (with torch's CPU build) brings OpenVINO. llama.cpp is as fast as it was compiled: `pip install
--no-cache-dir --no-binary llama-cpp-python llama-cpp-python` compiles it for this machine's processor. What `make test`
builds, which pip keeps, is not optimized and does not repack 4-bit weights.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import peers
import typer
from rich.console import Console

from mxconv.bench.forward_speed import CONTEXT
from mxconv.bench.machine import implementations, last_level_cache_bytes, this_machine
from mxconv.bench.rates import BANDWIDTH_CACHES, ReadBandwidth, spread
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.interop.gguf_export import export_gguf
from mxconv.kernels import _native

RATIO = "best peer / mxconv"
REPETITIONS = 3  # a turn
# of logits between engines, relative to the largest one; OpenVINO, whose sums are BF16, is at 0.16 after 1,900 tokens
MAX_DIFFERENCE = {"BF16": 0.2, "4 bits": 0.2}
MIN_LIKENESS = 0.2  # cosine of all logits with exact ones; 4 bits of random weights give 0.3 to 0.6, another model 0.0
LEVELS: tuple[Literal["target", "draft"], ...] = ("target", "draft")
OPENVINO_WEIGHTS = (
    ("--weight-format", "fp16"),  # of which it makes BF16 when it compiles the model
    ("--weight-format", "int4", "--sym", "--group-size", "32", "--ratio", "1.0", "--all-layers"),
)


def compare_logits(entries: list[peers.Entry], width: int, console: Console) -> None:
    """Compare the logits of a step of the same tokens within each group. INT4 weights are others than MXFP4's."""
    found = {entry: entry.ask(width, 0) for entry in entries}
    exact = found[entries[0]]
    for entry in entries[1:]:
        logits = found[entry]
        likeness = (logits * exact).sum() / np.sqrt((logits**2).sum() * (exact**2).sum())
        console.print(f"{entry.name}: cosine {likeness:.4f} with the logits of {entries[0].name}")
        assert likeness >= MIN_LIKENESS, f"{entry.name}: not the logits of this model"
    for group in MAX_DIFFERENCE:
        ours, *others = (entry for entry in entries if entry.group == group)
        logits = found[ours]
        for peer in others:
            if peer.name.endswith("INT4"):
                continue
            difference = np.abs(logits - found[peer]).max() / np.abs(logits).max()
            same = (logits.argmax(axis=1) == found[peer].argmax(axis=1)).sum()
            console.print(
                f"{ours.name} and {peer.name}: largest difference {difference:.5f} of the largest logit, "
                f"{same} of {len(logits)} greedy tokens are the same"
            )
            assert difference <= MAX_DIFFERENCE[group], f"{peer.name}: other logits than {ours.name}"


def prepare(folder: Path, checkpoint: Path | None, console: Console) -> tuple[Path, Path, Path, Path]:
    """The checkpoint, its package, and target and 4-bit level as GGUF, made where they are not there."""
    folder.mkdir(parents=True, exist_ok=True)
    model = checkpoint or folder / "model"
    if not model.is_dir():
        import make_random_model  # and torch, which no contender's process needs

        console.print("making the model of random weights, 2.2 GB")
        partial = folder / f"{model.name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        make_random_model.main(str(partial))
        partial.rename(model)
    package = folder / f"{model.name}-mxfp4"
    if not package.is_dir():
        with open_checkpoint(model) as source:
            convert(source, package, QuantizeOptions())
    files = [folder / f"{model.name}-{level}.gguf" for level in LEVELS]
    for path, level in zip(files, LEVELS, strict=True):
        if not path.is_file():
            export_gguf(package, path, level=level)
    return model, package, files[0], files[1]


def export_openvino(model: Path, folder: Path, console: Console) -> dict[str, Path]:
    """The same model for OpenVINO, of 16-bit and of 4-bit weights, made where they are not there."""
    found = {"bf16": folder / f"{model.name}-openvino-bf16", "int4": folder / f"{model.name}-openvino-int4"}
    for path in found.values():
        if not path.is_dir():
            console.print(f"exporting {path.name}")
            partial = path.with_name(f"{path.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            command = [sys.executable, "-m", "optimum.commands.optimum_cli", "export", "openvino", "-m", str(model)]
            command += ["--task", "text-generation-with-past", *OPENVINO_WEIGHTS[path == found["int4"]], str(partial)]
            subprocess.run(command, check=True, capture_output=True)
            partial.rename(path)
    return found


def measure(
    part: str,
    entries: list[peers.Entry],
    widths: Sequence[int],
    rounds: int,
    repetitions: int,
    bandwidth: ReadBandwidth,
) -> list[peers.Row]:
    """Milliseconds of a step, and how many times as long the best peer takes."""
    answers, reads = peers.take_turns(entries, widths, rounds, repetitions, bandwidth)
    times = {key: [1e3 * spread(seconds).median for seconds in found] for key, found in answers.items()}
    rows = []
    for group in dict.fromkeys(entry.group for entry in entries):
        ours, *others = (entry for entry in entries if entry.group == group)
        for width in widths:
            for entry in (ours, *others):
                rate = spread(reads[width, entry]).median / 1e9
                rows.append(peers.Row.of(part, group, width, entry.name, times[width, entry], rate))
            if others:
                best = np.min([times[width, peer] for peer in others], axis=0)
                rows.append(peers.Row.of(part, group, width, RATIO, np.divide(best, times[width, ours]).tolist()))
    return rows


def main(
    folder: Path,
    rounds: Annotated[int, typer.Option(min=1)] = 20,
    model: Annotated[Path | None, typer.Option(help="a BF16 checkpoint instead of random weights")] = None,
    prompts: Annotated[str, typer.Option(help="measure prompts of these lengths instead, e.g. 512,1900")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object as the last line")] = False,
) -> None:
    lengths = sorted({int(part) for part in prompts.split(",") if part})
    console = Console(soft_wrap=True, highlight=False, width=100)
    engine = _native.Engine(implementations()[0], peers.THREADS)
    machine = this_machine(peers.THREADS)
    console.print(
        f"{machine.cpu}, {peers.THREADS} threads, {machine.compiler}, {machine.commit}, kernels {engine.name}"
    )
    checkpoint, package, target, draft = prepare(folder, model, console)
    vocab_size = json.loads((package / "config.json").read_text())["vocab_size"]
    makers: list[peers.Plan] = [("BF16", "mxconv BF16", peers.MxconvModel, (package, 0))]
    makers += [("4 bits", "mxconv MXFP4", peers.MxconvModel, (package, 1))]
    if peers.has("llama_cpp", "llama-cpp-python", console):
        makers += [("BF16", "llama.cpp BF16", peers.LlamaCppModel, (target,))]
        makers += [("4 bits", "llama.cpp MXFP4", peers.LlamaCppModel, (draft,))]
        peers.say_how_llama_was_built(console)
    if peers.has("optimum.intel", "optimum-intel", console):
        exported = export_openvino(checkpoint, folder, console)
        makers += [("BF16", "OpenVINO BF16", peers.OpenVinoModel, (exported["bf16"],))]
        makers += [("4 bits", "OpenVINO INT4", peers.OpenVinoModel, (exported["int4"],))]
    bandwidth = ReadBandwidth(engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    rows = []

    def measure_models(title: str, context: int, widths: Sequence[int], repetitions: int) -> None:
        ids = np.random.default_rng(0).integers(0, vocab_size, context + widths[-1]).tolist()
        with peers.running([(*maker[:3], (*maker[3], ids, context)) for maker in makers]) as entries:
            compare_logits(entries, widths[-1], console)
            found = measure(title, entries, widths, rounds, repetitions, bandwidth)
        console.print(peers.table_of(title, found))
        rows.extend(found)

    if lengths:
        measure_models("prompts", 0, lengths, 1)
        measure_models(f"steps after {lengths[-1]} tokens", lengths[-1], peers.LATER_WIDTHS, REPETITIONS)
    else:
        measure_models("whole model", CONTEXT, peers.WIDTHS, REPETITIONS)
    if json_output:
        print(json.dumps({"machine": asdict(machine), "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    typer.run(main)
