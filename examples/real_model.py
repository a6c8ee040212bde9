"""How much faster a package's drafts make a real model: every strategy on files of prompts, a table for each file.

    mxconv quantize SMALL -o small; mxconv quantize MODEL -o package --draft package:small
    python examples/real_model.py package results --prompts HumanEval.jsonl --prompts question.jsonl --temperature 0.7

The target decodes plainly, with each draft as chains and as trees, with all of them, with prompt-lookup below them, and
by `auto`, which has look-ups too, and learns from one text of a table to the next or begins anew with each. The
strategies take turns on every text, forth and back, each between samples of read bandwidth; with `--beside PACKAGE`
plain decoding of another package of the model is one of them. Their tokens must be the same, greedy and, by the rule
`coupled`, at any temperature: a difference is an error.

FOLDER/journal.jsonl gets a line for every text and strategy that is done: a run that was stopped goes on there, where
`auto` begins to learn anew. After every text FOLDER/results.json and FOLDER/results.md have the figures of those texts
that all strategies decoded. A file has what `mxconv generate --prompts` reads, HumanEval's tasks or GSM8K's questions.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from mxconv.bench.decode_speed import GREEDY, WARM_TOKENS, strategies_of
from mxconv.bench.forward_speed import bench_forwards
from mxconv.bench.machine import implementations, native_engine, this_machine
from mxconv.bench.rates import ReadBandwidth, spread
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import MxconvError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Request, Selection
from mxconv.text.chat import encode_prompts
from mxconv.text.distribution import Sampling
from mxconv.text.messages import Prompt, as_chat, read_prompts

CODE = "Complete this function:\n\n"  # before HumanEval's functions, in a chat
FRESH = "auto, each text the first"
LOOK_UP = "prompt-lookup"
COLUMNS = {
    "tokens_per_second": "tokens/s",
    "speedup": "speed-up",
    "after_prompt": "tokens/s after the prompt",
    "speedup_after_prompt": "speed-up",
    "tokens_per_round": "tokens a round",
    "plain_passes_per_round": "plain passes a round",
}
Entry = dict[str, Any]  # a line of the journal, or a part of the results


@dataclass(frozen=True)
class Task:
    """A text that every strategy decodes."""

    table: tuple[str, float]  # a file, and a temperature
    number: int  # in the file
    request: Request


class Journal:
    """What was decoded, a line each. Raises MxconvError for a file with other settings, and for tokens that differ."""

    def __init__(self, path: Path, settings: Entry) -> None:
        self.path, self.found = path, defaultdict[tuple[str, float, int], dict[str, Entry]](dict)  # by strategy
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")] or [json.dumps(settings) + "\n"]
        path.write_text("".join(whole))  # without a line that was cut short
        first, *others = map(json.loads, whole)
        if first != settings:
            raise MxconvError(f"{path}: of a run with {first}; {settings} is required. Name another folder.")
        for entry in others:
            self.add(entry, is_new=False)

    def add(self, entry: Entry, is_new: bool = True) -> None:
        file, temperature, number, strategy = (entry[key] for key in ("file", "temperature", "number", "strategy"))
        known = self.found[file, temperature, number]
        if any(other["tokens"] != entry["tokens"] for other in known.values()):
            raise MxconvError(
                f"{file}: text {number}, temperature {temperature}: {strategy} gives other tokens than "
                f"{', '.join(known)}; the same are required. Please report this as a defect."
            )
        known[strategy] = entry
        if is_new:
            with self.path.open("a") as written:
                written.write(json.dumps(entry) + "\n")


def tasks_of(loaded: LoadedPackage, table: tuple[str, float], num_prompts: int, most: int, chat: bool) -> list[Task]:
    """Texts at equal distances in a file, each to go on for so many tokens at most."""
    lines = [json.loads(line) for line in Path(table[0]).read_text(encoding="utf-8").splitlines() if line.strip()]
    prompts: list[Prompt]
    if "question" in lines[0]:  # GSM8K
        prompts = [line["question"] for line in lines]
    elif chat and "entry_point" in lines[0]:  # HumanEval
        prompts = [CODE + line["prompt"] for line in lines]
    else:
        prompts = read_prompts(Path(table[0]), chat)
    numbers = range(0, len(prompts), max(len(prompts) // num_prompts, 1))[:num_prompts]
    texts = [as_chat(prompts[number]) if chat else prompts[number] for number in numbers]
    sampling, stop = Sampling(table[1]) if table[1] else None, loaded.tokenizer.eos_token_ids
    encoded = zip(numbers, encode_prompts(loaded.tokenizer, loaded.folder, texts), strict=True)
    return [Task(table, each, Request(ids, most, stop, Selection(sampling, seed=each))) for each, ids in encoded]


def hierarchies_of(loaded: LoadedPackage) -> dict[str, Hierarchy]:
    """The strategies of a package's levels, and those with the look-up below them."""
    target, *drafts, look_up = loaded.auto_levels
    found = strategies_of([target, *drafts], auto_levels=loaded.auto_levels)
    made = {"plain" if name == GREEDY else name: each for name, each in found.items()}
    made[FRESH] = Hierarchy(loaded.auto_levels, "auto")
    made |= {f"{draft.name}, {LOOK_UP}": Hierarchy([target, draft, look_up]) for draft in drafts}
    without = Hierarchy([target, *drafts], "auto")
    return made | {f"all, {LOOK_UP}": Hierarchy(loaded.auto_levels), f"auto without {LOOK_UP}": without}


def decoded(task: Task, strategy: str, hierarchy: Hierarchy, bandwidth: ReadBandwidth) -> Entry:
    """Decode a text with a strategy; the line for the journal."""
    asked = task.request
    work = partial(hierarchy.generate, asked.prompt, asked.max_new_tokens, asked.stop_tokens, None, asked.selection)
    made, rate = bandwidth.beside(work)
    entry: Entry = {"file": task.table[0], "temperature": task.table[1], "number": task.number, "strategy": strategy}
    entry |= {"tokens": made.token_ids, "seconds": made.seconds, "prompt_seconds": made.prompt_seconds}
    entry |= {"num_rounds": made.trace.num_rounds, "gigabytes_per_second": rate / 1e9}
    return entry | {"drafts": {each.name: (each.num_proposed, each.num_accepted) for each in made.trace.statistics[1:]}}


def summary(mine: Sequence[Entry], plain: Sequence[Entry]) -> Entry:
    """A strategy's figures over some texts, beside those of plain decoding."""

    def later(entries: Sequence[Entry]) -> tuple[int, float]:
        """Tokens and seconds after the first token of each text, which comes with its prompt."""
        spent = [(len(each["tokens"]) - 1, each["seconds"] - each["prompt_seconds"]) for each in entries]
        return sum(count for count, _ in spent), max(sum(seconds for _, seconds in spent), 1e-9)

    seconds, plain_seconds = (sum(each["seconds"] for each in entries) for entries in (mine, plain))
    (num_later, of_later), (_, plain_later) = later(mine), later(plain)  # as many tokens of both
    of_round = num_later / max(sum(each["num_rounds"] - 1 for each in mine), 1)
    speedup = plain_later / of_later
    values = (num_later + len(mine)) / seconds, plain_seconds / seconds, num_later / of_later, speedup
    accepted = {}
    for draft in mine[0]["drafts"]:
        num_proposed, num_accepted = map(sum, zip(*(each["drafts"][draft] for each in mine), strict=True))
        if num_proposed:
            accepted[draft] = num_accepted / num_proposed
    return {**dict(zip(COLUMNS, (*values, of_round, of_round / speedup), strict=True)), "accepted": accepted}


def tables_of(tasks: Sequence[Task], names: Sequence[str], journal: Journal) -> list[Entry]:
    """Every table, of the texts that all strategies decoded."""
    texts = defaultdict[tuple[str, float], list[dict[str, Entry]]](list)
    for task in tasks:
        if set(names) <= set(found := journal.found[*task.table, task.number]):
            texts[task.table].append(found)
    tables = []
    for (file, temperature), of_table in texts.items():
        entries = {name: [each[name] for each in of_table] for name in names}
        rate = asdict(spread([each["gigabytes_per_second"] for own in entries.values() for each in own]))
        rows = {name: summary(own, entries["plain"]) for name, own in entries.items()}
        title = {"file": file, "temperature": temperature, "num_texts": len(of_table), "gigabytes_per_second": rate}
        tables.append(title | {"strategies": rows})
    return tables


def markdown(results: Entry) -> str:
    """The results as a document."""
    passes = (f"{each['level']} {each['num_tokens']}: {1e3 * each['seconds']:.1f}" for each in results["passes"])
    settings = ", ".join(f"{key} {value}" for key, value in results["settings"].items())
    lines = [f"commit {results['commit']}, {settings}", "", f"Milliseconds of passes by rows: {', '.join(passes)}"]
    for table in results["tables"]:
        rate = "{median:.0f} GB/s ({p10:.0f} to {p90:.0f})".format(**table["gigabytes_per_second"])
        lines += ["", f"{table['file']}, temperature {table['temperature']:g}, {table['num_texts']} texts, {rate}", ""]
        lines += [f"| strategy | {' | '.join(COLUMNS.values())} | accepted |", "|---" * 8 + "|"]
        for name, row in table["strategies"].items():
            accepted = ", ".join(f"{draft} {share:.2f}" for draft, share in row["accepted"].items())
            lines.append(f"| {name} | {' | '.join(f'{row[key]:.2f}' for key in COLUMNS)} | {accepted} |")
    return "\n".join([*lines, ""])


def main(
    package: Path,
    folder: Path,
    prompts: Annotated[list[Path], typer.Option(help="JSONL; a table each")],
    num_prompts: Annotated[int, typer.Option(help="of a file, at equal distances")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2)] = 128,
    temperature: Annotated[list[float] | None, typer.Option(help="a table each; 0 without")] = None,
    strategies: Annotated[str | None, typer.Option(help="joined by semicolons; all without")] = None,
    kernel: str | None = None,
    beside: Annotated[Path | None, typer.Option(help="another package of the model, decoded plainly")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="prompts as they are, without the chat template")] = False,
) -> None:
    name, *_ = implementations([kernel] if kernel else None)
    engine = native_engine(name, None)
    machine, bandwidth = this_machine(engine.num_threads), ReadBandwidth(engine)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as opened:
        loaded = opened.enter_context(LoadedPackage(package, None, name))
        settings: Entry = {
            "package": str(package),
            "levels": [level.name for level in loaded.auto_levels],
            "kernel": name,
        }
        settings |= {"machine": machine.described, "max_new_tokens": max_new_tokens, "chat": not raw}
        journal = Journal(folder / "journal.jsonl", settings)
        tables = [(str(path), heat) for path in prompts for heat in temperature or [0.0]]
        by_table = {each: tasks_of(loaded, each, num_prompts, max_new_tokens, not raw) for each in tables}
        tasks = [task for each in zip_longest(*by_table.values()) for task in each if task]  # all tables grow together
        made = {table: hierarchies_of(loaded) for table in tables}
        if beside is not None:
            other = opened.enter_context(LoadedPackage(beside, ["target"], name))
            for each in made.values():
                each[f"plain, {beside.name}"] = Hierarchy(other.levels)
        known = list(made[tables[0]])
        names = ["plain", *strategies.split(";")] if strategies else known
        if unknown := set(names) - set(known):
            raise MxconvError(f"--strategies: {', '.join(unknown)}; some of {'; '.join(known)} are required.")
        passes = [asdict(each) for each in bench_forwards(loaded, engine)]
        Hierarchy(loaded.auto_levels).generate(tasks[0].request.prompt, WARM_TOKENS)  # code comes from the disk
        for place, task in enumerate(tasks, 1):
            made[task.table][FRESH] = Hierarchy(loaded.auto_levels, "auto")
            for strategy in names if place % 2 else reversed(names):
                if strategy not in journal.found[*task.table, task.number]:
                    journal.add(decoded(task, strategy, made[task.table][strategy], bandwidth))
            results = {"commit": machine.commit, "settings": settings, "passes": passes}
            results["tables"] = tables_of(tasks, names, journal)
            (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
            (folder / "results.md").write_text(markdown(results))
            print(f"{place} of {len(tasks)} texts", flush=True)
    print(markdown(results))


if __name__ == "__main__":
    typer.run(main)
