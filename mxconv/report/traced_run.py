"""A run read from its trace, in the terminal and as one HTML page: sums of levels and depths, and every round.

A round is a verification step: the tree of tokens that a draft proposed, and what was added to the text. Traces of
earlier versions lack trees; the lines are those that mxconv/cli/generate_results.py writes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console

from mxconv.cost.trace import REMEDY, ProposedTree, TraceLine, TraceSummary, summarize, trace_lines
from mxconv.errors import MxconvError
from mxconv.report.charts import PageSection, render_page
from mxconv.report.tables import Columns, TextTable, print_table, printable

MOST_BYTES = 64_000_000
MOST_ROUNDS = 500  # of a page
MOST_PROMPT = 4000  # characters of a prompt
WITHOUT_TREES = "This trace has no trees: an earlier version wrote it. `mxconv generate --trace` records them now."
LEGEND = "Tokens are separated by |; the target's own is in brackets, and the draft proposed the others."
LEVELS = {
    "level": ("name",),
    "passes": ("num_forwards", ","),
    "proposed": ("num_proposed", ","),
    "nodes": ("num_nodes", ","),
    "accepted": ("num_accepted", ","),
    "share": ("share", ".3f"),
    "seconds": ("seconds", ".2f"),
}
DEPTHS: Columns = {
    "depth": ("depth",),
    "rounds": ("num_rounds", ","),
    "nodes": ("num_nodes", ","),
    "nodes a round": (lambda row: row["num_nodes"] / row["num_rounds"], ".2f"),
    "accepted": ("num_accepted", ","),
    "share": (lambda row: row["num_accepted"] / row["num_rounds"], ".3f"),
}
ROUNDS: Columns = {
    "added to the text": (lambda line: _added(line),),
    "round": ("round", "d"),
    "draft": (lambda line: line.tree.draft or "",),
    "nodes": (lambda line: len(line.tree.tokens), "d"),
    "accepted": (lambda line: line.tree.num_accepted, "d"),
}


@dataclass(frozen=True)
class TracedRun:
    """A run: its rounds, each with a line for every level, the target's first."""

    name: str
    rounds: list[list[TraceLine]]

    @cached_property
    def summary(self) -> TraceSummary:
        """The sums of each level, the prompts' own rounds included."""
        return summarize([line for lines in self.rounds for line in lines], self.name)

    @property
    def prompts(self) -> dict[int, list[TraceLine]]:
        """The target's line of every round by the number of the prompt."""
        found: dict[int, list[TraceLine]] = {}
        for target, *_ in self.rounds:
            found.setdefault(target.prompt, []).append(target)
        return found

    @property
    def has_trees(self) -> bool:
        return any(target.tree is not None for target, *_ in self.rounds)

    @property
    def depths(self) -> dict[str, list[dict[str, int]]]:
        """The sums of each depth, over all trees that reached it, by the draft that proposed to the target."""
        trees: dict[str, list[ProposedTree]] = {}
        for target, *_ in self.rounds:
            if target.tree is not None and target.tree.draft is not None:
                trees.setdefault(target.tree.draft, []).append(target.tree)
        return {draft: _depths(own) for draft, own in trees.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "num_prompts": len(self.prompts),
            "num_rounds": len(self.rounds),
            "num_tokens": self.summary.num_tokens,
            "has_trees": self.has_trees,
            "levels": [vars(level) for level in self.summary.levels],
            "depths": self.depths,
        }


def read_run(path: Path) -> TracedRun:
    """Read a trace.

    Raises:
        CheckpointError: it cannot be read.
        MxconvError: it is larger than 64 MB, has no lines, or one that `generate --trace` does not write.
    """
    rounds = list(_rounds(path))
    if not rounds:
        raise MxconvError(f"{path}: 0 lines; at least one is required. {REMEDY}")
    return TracedRun(str(path), rounds)


def _rounds(path: Path) -> Iterator[list[TraceLine]]:
    """The rounds of a trace; each level has one line in a round."""
    found = trace_lines(path, MOST_BYTES)
    for (prompt, number), group in groupby(found, key=lambda pair: (pair[1].prompt, pair[1].round)):
        lines: dict[str, TraceLine] = {}
        for label, line in group:
            if line.level in lines:
                raise MxconvError(
                    f"{label}: level {line.level!r:.80} a second time in round {number} of prompt {prompt}; each once "
                    f"is required. {REMEDY}"
                )
            lines[line.level] = line
        yield list(lines.values())


def _depths(trees: Sequence[ProposedTree]) -> list[dict[str, int]]:
    widths = [(tree.widths, tree.num_accepted) for tree in trees]
    return [
        {
            "num_rounds": sum(len(own) > depth for own, _ in widths),  # in which something was proposed at this depth
            "num_nodes": sum(own[depth] for own, _ in widths if len(own) > depth),
            "num_accepted": sum(accepted > depth for _, accepted in widths),
        }
        for depth in range(max((len(own) for own, _ in widths), default=0))
    ]


def print_run(run: TracedRun, console: Console) -> None:
    """Print the sums of levels and depths."""
    facts = ", ".join(f"{value} {name}" for name, value in _facts(run).items())
    print_table(TextTable(f"{printable(run.name)}  (trace)", lines=[facts]), console)
    if not run.has_trees:
        console.print(WITHOUT_TREES, highlight=False)
    for table in _tables(run):
        print_table(table, console)


def render_run_page(run: TracedRun) -> str:
    """The text of the page; of long runs it has the first 500 rounds."""
    num_rounds, left = len(run.rounds), MOST_ROUNDS
    lines = [LEGEND if run.has_trees else WITHOUT_TREES]
    sections = [PageSection(facts=_facts(run), tables=_tables(run), lines=lines)]
    for number, rounds in run.prompts.items() if run.has_trees else ():
        if shown := [line for line in rounds[:left] if line.tree is not None]:
            text = rounds[0].prompt_text
            cut = "(...) " if len(text) > MOST_PROMPT else ""
            table = TextTable.of("", ROUNDS, shown)
            sections.append(PageSection(f"Prompt {number + 1}", [printable(cut + text[-MOST_PROMPT:])], tables=[table]))
        left -= min(left, len(rounds))
    notes = [f"The page has the first {MOST_ROUNDS:,} of {num_rounds:,} rounds."] if num_rounds > MOST_ROUNDS else []
    subtitle = "The rounds of the target: what the drafts proposed in each, and what was added to the text."
    return render_page(f"{printable(run.name)}: rounds", [subtitle], notes, sections)


def _added(line: TraceLine) -> str:
    """The tokens that a round added to the text; as it is where the trace has no labels that make it."""
    tree = line.tree
    assert tree is not None
    if "".join(tree.emitted_texts) != line.text:
        return line.text
    texts = [f"[{text}]" if place == tree.own else text for place, text in enumerate(tree.emitted_texts)]
    return " | ".join(texts)


def _facts(run: TracedRun) -> dict[str, str]:
    num_tokens, num_rounds = run.summary.num_tokens, len(run.rounds)
    return {
        "prompts": f"{len(run.prompts):,}",
        "rounds": f"{num_rounds:,}",
        "tokens": f"{num_tokens:,}",
        "tokens a round": f"{num_tokens / num_rounds:.2f}",
    }


def _tables(run: TracedRun) -> list[TextTable]:
    levels = [
        vars(level)
        | {"share": level.num_accepted / level.num_proposed if level.num_proposed else None}
        | ({} if level.num_nodes else dict.fromkeys(("num_proposed", "num_nodes", "num_accepted")))
        for level in run.summary.levels
    ]
    tables = [TextTable.of("By level", LEVELS, levels)]
    tables[0].notes.append("Proposed counts the longest path of each tree, nodes all of it.")
    for draft, depths in run.depths.items():
        rows = [row | {"depth": depth} for depth, row in enumerate(depths, 1)]
        tables += [TextTable.of(f"{printable(draft)}, by depth", DEPTHS, rows)] if rows else []
    return tables
