"""Throughput over batch and context, measured and predicted: plain decoding, self-drafts, MagicDec, SPIRe, speculators.

    python examples/batch_maps.py PACKAGE FOLDER [--batches 1,2,4,8,16] [--contexts 128,512,1024,2048,4096]

Times are those of real passes: of the target over all rows that a round verifies, and of every draft, over as many
sequences as the batch has, whose caches hold random keys and values. Tokens a round come from a file of acceptance
that was measured on trained models (--acceptance, see batch_plans.py), the same for all batches and contexts. So

    tokens a second = batch * tokens a round / (seconds of the proposal + seconds of the pass that verifies it)

of each plan, and the best is the one with most. What no pass contains, choosing tokens and looking after texts, is left
out. The prediction is `mxconv cost`'s of the same passes, from bandwidth and multiply-adds a second alone, which are
sampled beside them. PACKAGE has a 4-bit level; its positions are continued where contexts are longer.

FOLDER gets batch_maps.json, batch_maps.md and two pictures; the last line of --json is the first of these.
"""

import argparse
import json
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from batch_cells import CellBench, Rows
from batch_levels import Levels, Sizes
from batch_pictures import draw
from batch_plans import MOST_TOKENS, Method, read_methods
from batch_results import CellResult, measured, result_of, to_json
from batch_tables import tables
from batch_texts import Texts

from mxconv.bench.engine import implementations
from mxconv.bench.machine import Machine, this_machine
from mxconv.cli.output import progress_bars
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.kv_pages import KV_DTYPES
from mxconv.errors import MxconvError
from mxconv.kernels.engine import usable_processors
from mxconv.package.manifest import read_manifest

ACCEPTANCE = Path(__file__).with_name("acceptance_by_position.json")
WIDTHS = (1, 2, 3, 4, 5, 7, 9, 14)  # rows of each sequence; between them lines are drawn
ROOM = 4 * MOST_TOKENS  # positions behind a context: a round's, and those by which SPIRe's texts grow
KV_BYTES = 5_000_000_000


def measure(given: argparse.Namespace, methods: list[Method]) -> tuple[list[CellResult], Machine, Sizes]:
    """All cells, the batches of a context one after another."""
    widths = sorted({1, *given.widths})
    kept = [method for method in methods if measured(method, widths)]
    if not kept:
        raise MxconvError(
            f"--widths: {widths[-1]} rows at most; room for a plan of --acceptance is required. Give more."
        )
    with ExitStack() as stack, progress_bars("cells") as progress:
        loaded = stack.enter_context(_loaded(given))
        engine = loaded.matrices.engine
        assert engine is not None
        longest = max(given.contexts)
        levels = Levels(loaded, longest + ROOM, stack, given.spire_layers, given.inner_size)
        texts = Texts(levels.target, max(given.batches), longest, MOST_TOKENS + 1, given.kv_bytes)
        kinds = dict.fromkeys(method.draft for method in kept)
        bench = CellBench(levels.target, texts, levels.drafts(kinds, texts), engine)
        proposals = proposals_of(kept, widths)
        places = [(batch, context) for context in given.contexts for batch in given.batches]
        results = []
        for number, (batch, context) in enumerate(places):
            progress("cells", number, len(places))
            cell = bench.measure(batch, context, widths, proposals)
            results.append(result_of(cell, kept, levels, given.kv_dtype))
        progress("cells", len(places), len(places))
        return results, this_machine(engine.num_threads), levels.sizes


def proposals_of(methods: list[Method], widths: list[int]) -> list[tuple[str, Rows]]:
    """What is to be timed: those with which no other begins."""
    found = {(method.draft, plan.draft_rows) for method in methods for plan in measured(method, widths)}
    return sorted(
        (kind, rows)
        for kind, rows in found
        if not any(kind == other and len(rows) < len(longer) and longer[: len(rows)] == rows for other, longer in found)
    )


def _loaded(given: argparse.Namespace) -> LoadedPackage:
    names = [record.name for record in read_manifest(given.package).levels if record.kind in ("target", "self-draft")]
    if len(names) < 2:
        raise MxconvError(f"{given.package}: no 4-bit level; one is required. Convert the model with mxconv quantize.")
    (kernel,) = implementations(None)
    return LoadedPackage(given.package, names[:2], kernel, given.threads, kv_dtype=given.kv_dtype)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=_numbers, default=[1, 2, 4, 8, 16], help="sequences")
    parser.add_argument("--contexts", type=_numbers, default=[128, 512, 1024, 2048, 4096], help="positions of each")
    parser.add_argument("--acceptance", type=Path, default=ACCEPTANCE, help="a file as batch_plans.py describes it")
    parser.add_argument("--widths", type=_numbers, default=list(WIDTHS), help="rows of each sequence in target passes")
    parser.add_argument("--spire-layers", type=_number, help="a quarter of the target's by default")
    parser.add_argument("--inner-size", type=_number, help="of the speculator's states; the target's by default")
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, default="fp32")
    parser.add_argument("--kv-bytes", type=_number, default=KV_BYTES, help="that the target's caches may take")
    parser.add_argument("--threads", type=_number, default=usable_processors())
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; an integer from 1 on is required")
    return int(text)


def _numbers(text: str) -> list[int]:
    return sorted({_number(part) for part in text.split(",")})


def main() -> None:
    given = parse()
    methods = read_methods(given.acceptance)
    given.folder.mkdir(parents=True, exist_ok=True)
    results, machine, sizes = measure(given, methods)
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    title = f"{given.package.resolve().name}, caches in {given.kv_dtype}: {machine.cpu}, {threads}"
    found = {
        "title": title,
        "machine": asdict(machine),
        "sizes": asdict(sizes),
        "acceptance": {method.name: method.source for method in methods},
        "kv_dtype": given.kv_dtype,
        "cells": to_json(results),
    }
    (given.folder / "batch_maps.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    text = "\n".join([title + "\n", *tables(results)])
    (given.folder / "batch_maps.md").write_text(text + "\n", encoding="utf-8")
    draw(results, title, given.folder)
    print(text)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
