"""A traced run in the terminal and as one HTML page: levels, depths, the text, and the tree of every round.

Tokens are the text of a model: the page escapes all of it and shows white space by marks.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from rich.console import Console

from mxconv.cost.trace import ProposedTree, TraceLine
from mxconv.report.html_page import PageSection, render_page
from mxconv.report.tables import TextTable, print_table, printable
from mxconv.report.traced_run import TracedRun

MOST_DRAWN_ROUNDS = 500
MOST_DRAWN_NODES = 20_000
MOST_PROMPT = 4000  # characters of a prompt
MOST_LABEL = 16  # characters of a token in a tree
OWN = -1  # in place of a node: the target's own token
MARKS = {" ": "·", "\n": "↵", "\t": "⇥"}
WITHOUT_TREES = "This trace has no trees: an earlier version wrote it. `mxconv generate --trace` records them now."
LEGEND = (
    "Accepted tokens have a solid frame, rejected ones a dashed frame, and the target's own token another colour. "
    "Columns are depths, percentages the draft's probabilities. · is a space, ↵ a new line, ⇥ a tab."
)
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


class TextPiece(NamedTuple):
    """Characters of a token, or the marks of its white space."""

    text: str
    is_mark: bool = False


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
    """The text of the page; of long runs the first 500 rounds, or 20,000 nodes, are drawn."""
    left = drawn = _num_drawn(run)
    prompts, num_tokens, num_rounds = run.prompts, run.summary.num_tokens, len(run.rounds)
    facts = {
        "prompts": f"{len(prompts):,}",
        "rounds": f"{num_rounds:,}",
        "tokens": f"{num_tokens:,}",
        "tokens a round": f"{num_tokens / num_rounds:.2f}",
    }
    sections = [PageSection(facts=facts, tables=_tables(run), lines=[LEGEND if run.has_trees else WITHOUT_TREES])]
    for number, rounds in prompts.items() if run.has_trees else ():
        if left:
            title = printable(" ".join(rounds[0].prompt_text.split())[:60])
            sections.append(PageSection(f"Prompt {number + 1}: {title}", prompt=_prompt(rounds[:left])))
        left -= min(left, len(rounds))
    notes = [f"The first {drawn:,} of {num_rounds:,} rounds are drawn."] if drawn < num_rounds else []
    subtitle = "The tokens that the drafts proposed in each round of the target, and those that it accepted."
    return render_page(f"{printable(run.name)}: trees", [subtitle], notes, sections)


def label_pieces(text: str, most: int | None = None) -> list[TextPiece]:
    """Text with marks for white space; a label of at most `most` characters also marks its spaces."""
    cut = text if most is None or len(text) <= most else text[: most - 1]
    marked = " \n\t" if most is not None else "\n\t"
    pieces: list[TextPiece] = []
    for part in re.findall(rf"[{marked}]|[^{marked}]+", cut):
        pieces.append(TextPiece(MARKS[part], True) if part in marked else TextPiece(printable(part)))
        if part == "\n" and most is None:
            pieces.append(TextPiece("\n"))
    return pieces if cut == text else [*pieces, TextPiece("…", True)]


def tree_rows(tree: ProposedTree) -> list[dict[str, Any]]:
    """The rows of a tree whose columns are depths, each with its `indent` and its `nodes`; the text is the first row.

    A first child continues the row of its parent, and every other child begins a row below. Accepted tokens come
    before their siblings, then the target's own token; siblings keep their order, likelier first.
    """
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    accepted = tree.path[: tree.num_accepted]
    for siblings in children.values():
        siblings.sort(key=lambda node: node not in accepted)  # stable
    if tree.own is not None:
        last = accepted[-1] if accepted else -1
        children[last] = [OWN, *children.get(last, [])]
    rows: list[dict[str, Any]] = []
    todo = [(node, 0, index > 0) for index, node in reversed(list(enumerate(children.get(-1, []))))]
    while todo:  # no recursion, since a chain may be deep
        node, depth, begins = todo.pop()
        if begins or not rows:
            rows.append({"indent": depth, "nodes": []})
        rows[-1]["nodes"].append(node)
        below = [] if node == OWN else children.get(node, [])
        todo += [(child, depth + 1, index > 0) for index, child in reversed(list(enumerate(below)))]
    return rows


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


def _num_drawn(run: TracedRun) -> int:
    """The number of rounds, from the first on, that a page holds."""
    num_nodes = 0
    for count, (target, *_) in enumerate(run.rounds):
        num_nodes += len(target.tree.tokens) if target.tree else 0
        if count == MOST_DRAWN_ROUNDS or num_nodes > MOST_DRAWN_NODES:
            return count
    return len(run.rounds)


def _prompt(rounds: list[TraceLine]) -> dict[str, Any]:
    """The text of a prompt and of its rounds, and their trees."""
    text = rounds[0].prompt_text
    cut = "(...) " if len(text) > MOST_PROMPT else ""
    return {
        "text": label_pieces(cut + text[-MOST_PROMPT:]),
        "written": [part for found in rounds for part in _written(found)],
        "rounds": [_drawn_round(found.round, found.tree) for found in rounds if found.tree is not None],
    }


def _drawn_round(number: int, tree: ProposedTree) -> dict[str, Any]:
    shape = f"{printable(tree.draft or '')}, {len(tree.tokens)} nodes" if tree.tokens else "nothing proposed"
    title = f"round {number}: {shape}; {tree.num_accepted} accepted, {len(tree.emitted)} tokens"
    rows = [{"indent": row["indent"], "boxes": [_box(tree, node) for node in row["nodes"]]} for row in tree_rows(tree)]
    return {"title": title, "rows": rows}


def _box(tree: ProposedTree, node: int) -> dict[str, Any]:
    """A token of a tree as the page draws it: its kind, label and probability, and what a pointer over it shows."""
    if node == OWN:
        place = len(tree.path)
        kind, share, token = "own", None, tree.emitted[place]
        text = tree.emitted_texts[place] if tree.emitted_texts else ""
    else:
        kind = "accepted" if node in tree.path[: tree.num_accepted] else "rejected"
        share, token = tree.probabilities[node] if tree.probabilities else None, tree.tokens[node]
        text = tree.texts[node] if tree.texts else ""
    text = text or f"#{token}"
    title = f"{printable(text)!r}, token {token}: {'the target' if kind == 'own' else kind}"
    percent = "" if share is None else f"{min(share, 1):.0%}"
    return {"kind": kind, "pieces": label_pieces(text, MOST_LABEL), "share": percent, "title": title}


def _written(found: TraceLine) -> Iterator[tuple[str, list[TextPiece]]]:
    """The text of a round by the kind of its tokens, or in one piece where the labels do not add up to it."""
    tree = found.tree
    if tree is None or "".join(tree.emitted_texts) != found.text:
        yield "", label_pieces(found.text)
        return
    for place, text in enumerate(tree.emitted_texts):
        yield "own" if place == tree.own else "accepted", label_pieces(text)
