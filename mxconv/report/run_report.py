"""A traced run in the terminal and as one HTML page: sums of levels and depths, and every round of each prompt."""

from typing import Any

from rich.console import Console

from mxconv.cost.trace import TraceLine
from mxconv.report.html_page import PageSection, render_page
from mxconv.report.tables import TextTable, print_table, printable
from mxconv.report.traced_run import TracedRun

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
DEPTHS = {
    "depth": ("depth",),
    "rounds": ("num_rounds", ","),
    "nodes": ("num_nodes", ","),
    "nodes a round": ("width", ".2f"),
    "accepted": ("num_accepted", ","),
    "share": ("share", ".3f"),
}


ROUNDS: dict[str, tuple[Any, ...]] = {
    "added to the text": (lambda line: _added(line),),
    "round": ("round", "d"),
    "draft": (lambda line: line.tree.draft or "",),
    "nodes": (lambda line: len(line.tree.tokens), "d"),
    "accepted": (lambda line: line.tree.num_accepted, "d"),
}


def print_run(run: TracedRun, console: Console) -> None:
    """Print the sums of levels and depths."""
    num_tokens, num_rounds = run.summary.num_tokens, len(run.rounds)
    summary = (
        f"{num_tokens:,} tokens of {len(run.prompts):,} prompts in {num_rounds:,} rounds of the target "
        f"({num_tokens / num_rounds:.2f} a round)"
    )
    print_table(TextTable(f"{printable(run.name)}  (trace)", lines=[summary]), console)
    if not run.has_trees:
        console.print(WITHOUT_TREES, highlight=False)
    for table in _tables(run):
        print_table(table, console)


def render_run_page(run: TracedRun) -> str:
    """The text of the page; of long runs it has the first 500 rounds."""
    prompts, num_tokens, num_rounds = run.prompts, run.summary.num_tokens, len(run.rounds)
    facts = {
        "prompts": f"{len(prompts):,}",
        "rounds": f"{num_rounds:,}",
        "tokens": f"{num_tokens:,}",
        "tokens a round": f"{num_tokens / num_rounds:.2f}",
    }
    sections = [PageSection(facts=facts, tables=_tables(run), lines=[LEGEND if run.has_trees else WITHOUT_TREES])]
    left = MOST_ROUNDS
    for number, rounds in prompts.items() if run.has_trees else ():
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
        rows = [
            vars(d) | {"depth": place, "width": d.num_nodes / d.num_rounds, "share": d.num_accepted / d.num_rounds}
            for place, d in enumerate(depths, 1)
        ]
        tables += [TextTable.of(f"{printable(draft)}, by depth", DEPTHS, rows)] if rows else []
    return tables
