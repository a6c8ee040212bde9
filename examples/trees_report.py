"""Trees beside chains: tokens a second with each draft, each hierarchy, and none, in turns, in one run.

    python examples/trees_report.py PACKAGE PROMPTS.jsonl STRATEGY ... [--target LEVEL] [--num-prompts N] [--json]

A STRATEGY is a hierarchy: its drafts below the target, joined by +, each a level of PACKAGE or what `--draft`
takes: `mxfp4`, `stand`, `mxfp4+checkpoint:SMALL`. Each is decoded by `auto` twice, its drafts proposing chains and
trees; what is learned stays from prompt to prompt. The prompts come one after the other, cut to --prompt-tokens, and
for each of them all strategies take their turns, a sample of the machine's read bandwidth before each. Every text must
be what the target writes alone, token for token, or the run ends with an error.

"behind the prompt" leaves out the time until the first token, "whole" does not; both are ratios to plain decoding.
Run it on a machine that does nothing else.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mxconv.bench.forwards import BANDWIDTH_CACHES
from mxconv.bench.machine import last_level_cache_bytes, this_machine
from mxconv.bench.rates import ReadBandwidth
from mxconv.bench.samples import spread
from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.kernels.engine import usable_processors
from mxconv.package.manifest import read_manifest
from mxconv.speculation.generation import Generation
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.prompts import read_prompts
from mxconv.speculation.selection import GREEDY
from mxconv.text.chat import encode_prompts

BANDWIDTH_BYTES = 1 << 26
WARM_TOKENS = 8
PLAIN = "plain"


@dataclass
class Tally:
    """What a strategy took for all prompts so far."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_behind: int = 0  # tokens behind the first
    seconds_behind: float = 0.0
    num_rounds: int = 0  # likewise
    num_nodes: int = 0  # proposed to the target

    def add(self, done: Generation) -> None:
        self.num_tokens += len(done.token_ids)
        self.seconds += done.seconds
        self.num_behind += len(done.token_ids) - 1
        self.seconds_behind += done.seconds - done.prompt_seconds
        self.num_rounds += done.trace.num_rounds - 1
        entries = (entry.tree for entry in done.trace.entries if entry.tree is not None)
        self.num_nodes += sum(len(tree.tokens) for tree in entries)

    def row(self, plain: "Tally") -> dict[str, float]:
        return {
            "tokens_per_second": self.num_tokens / self.seconds,
            "behind_prompt": (self.num_behind / self.seconds_behind) / (plain.num_behind / plain.seconds_behind),
            "whole": (self.num_tokens / self.seconds) / (plain.num_tokens / plain.seconds),
            "tokens_per_round": self.num_behind / max(self.num_rounds, 1),
            "nodes_per_round": self.num_nodes / max(self.num_rounds, 1),
        }


def load(package: Path, target: str | None, strategies: Sequence[str]) -> tuple[LoadedPackage, dict[str, LoadedLevel]]:
    """All levels, each once, so that every strategy reads the same memory; those of drafts by what names them."""
    record = read_manifest(package)
    known = {level.name for level in record.levels}
    named = dict.fromkeys(draft for strategy in strategies for draft in strategy.split("+"))
    inside, others = [draft for draft in named if draft in known], [draft for draft in named if draft not in known]
    levels = [target or record.levels[0].name, *inside]
    loaded = LoadedPackage(package, levels, drafts=[parse_draft(draft) for draft in others])
    return loaded, dict(zip([*inside, *others], loaded.levels[1:], strict=True))


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Tally], list[float]]:
    """The tally of every strategy, plain decoding first, and the bandwidth before each text."""
    loaded, drafts = load(arguments.package, arguments.target, arguments.strategies)
    with loaded:
        hierarchies = {PLAIN: Hierarchy(loaded.levels[:1])}
        for strategy in arguments.strategies:
            levels = [loaded.levels[0], *(drafts[draft] for draft in strategy.split("+"))]
            for tree, how in (("chain", "chains"), ("auto", "trees")):
                hierarchies[f"{strategy}, {how}"] = Hierarchy(levels, "auto", tree=tree)  # type: ignore[arg-type]
        return decode_in_turns(arguments, loaded, hierarchies)


def decode_in_turns(
    arguments: argparse.Namespace, loaded: LoadedPackage, hierarchies: Mapping[str, Hierarchy]
) -> tuple[dict[str, Tally], list[float]]:
    read = read_prompts(arguments.prompts)[: arguments.num_prompts]
    prompts = encode_prompts(loaded.tokenizer, loaded.folder, read)
    assert loaded.matrices.engine is not None
    bandwidth = ReadBandwidth(loaded.matrices.engine, BANDWIDTH_CACHES * last_level_cache_bytes())
    tallies, rates, names = {name: Tally() for name in hierarchies}, [], list(hierarchies)
    for number, prompt in enumerate(prompts):
        ids, expected = prompt[: arguments.prompt_tokens], None
        for place in range(len(names)):
            name = names[(place + number) % len(names)]  # nobody always follows the same one
            hierarchy = hierarchies[name]
            if number == 0:
                hierarchy.generate(ids, WARM_TOKENS)
            rates.append(bandwidth.sample(BANDWIDTH_BYTES) / 1e9)
            done = hierarchy.begin()
            done.trace.records_trees = True
            for _ in hierarchy.stream(ids, arguments.num_tokens, (), GREEDY, done):
                pass
            expected = expected or done.token_ids
            if done.token_ids != expected:
                sys.exit(f"prompt {number}: {name} wrote other tokens than another strategy; please report this")
            tallies[name].add(done)
        print(f"\r{number + 1} of {len(prompts)} prompts", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return tallies, rates


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("strategies", nargs="+", metavar="STRATEGY")
    parser.add_argument("--target", metavar="LEVEL", help="what is decoded; the package's first level by default")
    parser.add_argument("--num-prompts", type=int, help="of the file's; all by default")
    parser.add_argument("--num-tokens", type=int, default=64, help="of each text")
    parser.add_argument("--prompt-tokens", type=int, default=200, help="the most of a prompt")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser.parse_args()


def main() -> None:
    arguments, console = parse(), Console(soft_wrap=True, highlight=False, width=120)
    machine = this_machine(usable_processors())
    console.print(f"{machine.cpu}, {machine.threads} threads, {machine.compiler}, {machine.commit}")
    tallies, rates = measure(arguments)
    rows = {name: tally.row(tallies[PLAIN]) for name, tally in tallies.items()}
    for name, row in rows.items():
        if name.endswith(", trees"):
            row["over_chains"] = row["behind_prompt"] / rows[name.replace(", trees", ", chains")]["behind_prompt"]
    columns = [*next(iter(rows.values())), "over_chains"]
    table = Table("", *(column.replace("_", " ") for column in columns))
    for name, row in rows.items():
        table.add_row(name, *(f"{row[column]:.3f}" if column in row else "" for column in columns))
    console.print(table)
    read, num_prompts = spread(rates), len(rates) // len(tallies)
    console.print(f"{num_prompts} prompts; read bandwidth {read.median:.1f} GB/s ({read.p10:.1f} to {read.p90:.1f})")
    if arguments.json:
        members = {"machine": asdict(machine), "results": rows, "num_prompts": num_prompts}
        print(json.dumps(members | {"read_bandwidth": asdict(read)}))


if __name__ == "__main__":
    main()
