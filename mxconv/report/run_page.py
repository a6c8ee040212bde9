"""A run as one HTML page: the text as it was written, and round by round the tree that was proposed.

The page needs nothing else: no network and no scripts, dark mode, phones. Tokens are a model's text: all of it is
escaped by the template engine, and white space is shown by marks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from mxconv.report.run import DepthSum, PromptRun, Round, Run, Tree
from mxconv.report.template import render
from mxconv.report.text import NOTHING, number, printable
from mxconv.report.tree_layout import OWN, Cell, lay_out
from mxconv.report.visible import Piece, label_pieces, text_pieces

MOST_DRAWN_ROUNDS = 500
MOST_DRAWN_NODES = 20_000
MOST_PROMPT = 4000  # characters of a prompt
LABEL = 16  # characters of a token in a tree
BAR = 120  # pixels
WORDS = {
    "stood": "a guess that stood",
    "fell": "a guess that did not stand",
    "own": "the target's own token",
}


@dataclass(frozen=True)
class Box:
    """A token as it is drawn."""

    cell: Cell
    pieces: list[Piece]
    share: str
    title: str


def write_run_page(run: Run, path: Path) -> None:
    """Write the page; an existing file is overwritten."""
    path.write_text(render_run_page(run), encoding="utf-8")


def render_run_page(run: Run) -> str:
    """The page's text; of long runs the first 500 rounds, or 20,000 nodes, are drawn."""
    drawn = _num_drawn(run)
    prompts, left = [], drawn
    for prompt in run.prompts:
        prompts.append(_prompt(prompt, left))
        left -= min(left, len(prompt.rounds))
    asked = [found.tree for found in run.rounds if found.tree is not None and found.tree.tokens]
    return render(
        "run_page.html.j2",
        trace=printable(run.name),
        has_trees=run.has_trees,
        tiles={
            "prompts": f"{len(run.prompts):,}",
            "rounds": f"{run.num_rounds:,}",
            "tokens": f"{run.num_tokens:,}",
            "tokens a round": f"{run.num_tokens / run.num_rounds:.2f}",
            "nodes a proposal": f"{sum(len(tree.tokens) for tree in asked) / len(asked):.2f}" if asked else NOTHING,
        },
        levels=[
            [
                printable(level.name),
                f"{level.num_forwards:,}",
                f"{level.num_proposed:,}" if level.num_nodes else NOTHING,
                f"{level.num_nodes:,}" if level.num_nodes else NOTHING,
                f"{level.num_accepted:,}" if level.num_nodes else NOTHING,
                number(level.num_accepted / level.num_proposed if level.num_proposed else None, 3),
            ]
            for level in run.levels
        ],
        depths=[
            {"draft": printable(draft), "rows": list(_depth_rows(depths)), "bar": BAR}
            for draft, depths in run.depths.items()
            if depths
        ],
        prompts=prompts,
        drawn=drawn,
        num_rounds=run.num_rounds,
    )


def _num_drawn(run: Run) -> int:
    """Rounds, from the first on, that a page holds."""
    num_nodes = 0
    for count, found in enumerate(run.rounds):
        num_nodes += len(found.tree.tokens) if found.tree else 0
        if count == MOST_DRAWN_ROUNDS or num_nodes > MOST_DRAWN_NODES:
            return count
    return run.num_rounds


def _depth_rows(depths: list[DepthSum]) -> Iterator[dict[str, Any]]:
    most = max(depth.num_nodes for depth in depths)
    for place, depth in enumerate(depths, 1):
        yield {
            "depth": place,
            "rounds": f"{depth.num_rounds:,}",
            "nodes": f"{depth.num_nodes:,}",
            "width": f"{depth.num_nodes / depth.num_rounds:.2f}",
            "stood": f"{depth.num_stood:,}",
            "share": f"{depth.num_stood / depth.num_rounds:.3f}",
            "long": round(BAR * depth.num_nodes / most, 1),
            "short": round(BAR * depth.num_stood / most, 1),
        }


def _prompt(prompt: PromptRun, left: int) -> dict[str, Any]:
    """A section: its text, and its first `left` rounds as pictures, those without a proposal together."""
    rounds = prompt.rounds[:left]
    pictures: list[dict[str, Any]] = []
    before = [Piece("prompt", False)]
    for is_plain, group in groupby(rounds, key=lambda found: found.tree is None or not found.tree.tokens):
        own = list(group)
        for part in [own] if is_plain else [[found] for found in own]:
            pictures.append(_picture(part, before))
            last = part[-1].tree
            if last is not None and last.emitted:
                before = label_pieces(_label(last.emitted_texts, last.emitted, -1), LABEL)
    beyond = len(prompt.text) - MOST_PROMPT
    return {
        "number": prompt.number,
        "title": printable(" ".join(prompt.text.split())[:60]),
        "text": text_pieces(prompt.text[-MOST_PROMPT:]),
        "num_cut": f"{beyond:,}" if beyond > 0 else "",
        "written": [(found.number, _written(found)) for found in rounds],
        "pictures": pictures,
        "num_left": len(prompt.rounds) - len(rounds),
    }


def _picture(rounds: list[Round], before: list[Piece]) -> dict[str, Any]:
    """A round with its tree, or several that had none, their tokens side by side."""
    first, last = rounds[0], rounds[-1]
    trees = [found.tree for found in rounds if found.tree is not None]
    numbers = f"round {first.number}" if first is last else f"rounds {first.number} to {last.number}"
    picture = {"rounds": [found.number for found in rounds], "title": numbers, "before": before}
    if trees and trees[0].tokens:
        layout = lay_out(trees[0])
        boxes = [_box(trees[0], cell) for cell in layout.cells]
        return picture | {
            "draft": printable(trees[0].draft or ""),
            "summary": _summary(trees[0]),
            "boxes": boxes,
            "forks": layout.forks,
            "plain": [],
        }
    return picture | {
        "draft": "",
        "summary": f"nothing proposed; {_count(sum(len(tree.emitted) for tree in trees), 'token')}",
        "boxes": [],
        "forks": [],
        "plain": [_box(tree, cell) for tree in trees for cell in lay_out(tree).cells],
    }


def _summary(tree: Tree) -> str:
    wrote = _count(len(tree.emitted), "token")
    widths = tree.widths
    shape = f"a chain of {len(widths)}" if max(widths) == 1 else f"{len(tree.tokens)} nodes, {len(widths)} deep"
    return f"{shape}; {tree.num_stood} stood, {wrote}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _box(tree: Tree, cell: Cell) -> Box:
    if cell.node == OWN:
        place = len(tree.path)
        token, text, share = tree.emitted[place], _label(tree.emitted_texts, tree.emitted, place), None
    else:
        token, text = tree.tokens[cell.node], _label(tree.texts, tree.tokens, cell.node)
        share = tree.probabilities[cell.node] if tree.probabilities else None
    title = f"{printable(text)!r}, token {token}: {WORDS[cell.kind]}"
    return Box(
        cell,
        label_pieces(text, LABEL),
        "" if share is None else f"{min(share, 1):.0%}",
        title if share is None else f"{title}; the draft's probability {share:.3g}",
    )


def _label(texts: list[str], tokens: list[int], place: int) -> str:
    """A token's text; its number where the trace has no text, or an empty one."""
    return (texts[place] if texts else "") or f"#{tokens[place]}"


def _written(found: Round) -> list[tuple[str, list[Piece]]]:
    """What a round wrote, by what became of each token; in one piece where labels do not make the text."""
    tree = found.tree
    if tree is None or "".join(tree.emitted_texts) != found.text:
        return [("", text_pieces(found.text))] if found.text else []
    kinds = ["own" if place == tree.own else "stood" for place in range(len(tree.emitted_texts))]
    return [(kind, text_pieces(text)) for kind, text in zip(kinds, tree.emitted_texts, strict=True)]
