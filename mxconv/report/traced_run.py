"""A run read from its trace: prompts, verification steps (rounds), and the tree of tokens that each one verified.

The lines are those that mxconv/speculation/trace_lines.py writes; traces of earlier versions lack trees.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from mxconv.cost.trace import REMEDY, TraceLine, trace_line, trace_members
from mxconv.errors import MxconvError

MOST_BYTES = 64_000_000
MOST_NODES = 1024  # of a round
MOST_TOKENS = 1 << 31


@dataclass(frozen=True)
class ProposedTree:
    """The tokens proposed in a round: nodes with parents before children; `path` are the accepted ones.

    `emitted` is what was added to the text: the tokens of the path and one of the target's own, or fewer where the
    text ended.
    """

    draft: str | None  # None: no draft was queried
    tokens: list[int]
    parents: list[int]  # -1: follows the text so far
    probabilities: list[float | None]  # empty where the draft has none
    path: list[int]
    emitted: list[int]
    texts: list[str]  # labels of the nodes; empty where the trace has none
    emitted_texts: list[str]

    @property
    def num_stood(self) -> int:
        """Accepted nodes that were added to the text."""
        return min(len(self.path), len(self.emitted))

    @property
    def own(self) -> int | None:
        """Index of the target's own token in `emitted`; None where the text ended before it."""
        return len(self.path) if len(self.emitted) > len(self.path) else None

    @property
    def widths(self) -> list[int]:
        """The number of nodes at each depth."""
        depths: list[int] = []
        widths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            widths += [0] * (depths[-1] + 1 - len(widths))
            widths[depths[-1]] += 1
        return widths


@dataclass(frozen=True)
class TracedRound:
    """One pass of the target, with a line for each level, the target's first, and the text that it added."""

    number: int
    lines: list[TraceLine]
    tree: ProposedTree | None
    text: str

    @property
    def num_tokens(self) -> int:
        """Tokens added to the text; older traces leave them to be counted from the first draft's accepted ones."""
        recorded = self.lines[0].num_tokens
        return 1 + sum(line.num_accepted for line in self.lines[1:2]) if recorded is None else recorded


@dataclass(frozen=True)
class PromptRun:
    """One prompt and its rounds; the text is empty where the trace has none."""

    number: int
    text: str
    rounds: list[TracedRound]


@dataclass(frozen=True)
class LevelSum:
    """The sums of a level over all rounds."""

    name: str
    num_forwards: int
    num_proposed: int  # of trees, their longest paths
    num_nodes: int
    num_accepted: int
    seconds: float


@dataclass(frozen=True)
class DepthSum:
    """The sums of a depth over all trees that reached it."""

    num_rounds: int  # in which something was proposed at this depth
    num_nodes: int
    num_stood: int


@dataclass(frozen=True)
class TracedRun:
    """A run: the prompts of a trace."""

    name: str
    prompts: list[PromptRun]

    @property
    def rounds(self) -> Iterator[TracedRound]:
        return (found for prompt in self.prompts for found in prompt.rounds)

    @property
    def num_rounds(self) -> int:
        return sum(len(prompt.rounds) for prompt in self.prompts)

    @property
    def num_tokens(self) -> int:
        return sum(found.num_tokens for found in self.rounds)

    @property
    def has_trees(self) -> bool:
        return any(found.tree is not None for found in self.rounds)

    @property
    def levels(self) -> list[LevelSum]:
        """The sums of each level, the target first."""
        by_name: dict[str, list[TraceLine]] = {}
        for found in self.rounds:
            for line in found.lines:
                by_name.setdefault(line.level, []).append(line)
        return [
            LevelSum(
                name,
                sum(line.num_forwards for line in lines),
                sum(line.num_proposed for line in lines),
                sum(line.num_rows for line in lines),
                sum(line.num_accepted for line in lines),
                sum(line.seconds for line in lines),
            )
            for name, lines in by_name.items()
        ]

    @property
    def depths(self) -> dict[str, list[DepthSum]]:
        """The sums of each depth by the draft that proposed to the target."""
        trees: dict[str, list[ProposedTree]] = {}
        for found in self.rounds:
            if found.tree is not None and found.tree.draft is not None:
                trees.setdefault(found.tree.draft, []).append(found.tree)
        return {draft: _depths(own) for draft, own in trees.items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "trace": self.name,
            "num_prompts": len(self.prompts),
            "num_rounds": self.num_rounds,
            "num_tokens": self.num_tokens,
            "has_trees": self.has_trees,
            "levels": [vars(level) for level in self.levels],
            "depths": {draft: [vars(depth) for depth in depths] for draft, depths in self.depths.items()},
        }


def read_run(path: Path) -> TracedRun:
    """Read a trace.

    Raises:
        CheckpointError: it cannot be read.
        MxconvError: it is larger than 64 MB, has no lines, or one that `generate --trace` does not write.
    """
    rounds = list(_rounds(trace_members(path, MOST_BYTES)))
    if not rounds:
        raise MxconvError(f"{path}: 0 lines; at least one is required. {REMEDY}")
    prompts = []
    for number, group in groupby(rounds, key=lambda found: found[0].lines[0].prompt):
        own = list(group)
        prompts.append(PromptRun(number, own[0][1], [found for found, _ in own]))
    return TracedRun(str(path), prompts)


def _rounds(lines: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[tuple[TracedRound, str]]:
    """Every round with the text of its prompt, empty where the first line has none."""
    parsed = ((label, members, trace_line(members, label)) for label, members in lines)
    for (_, number), group in groupby(parsed, key=lambda found: (found[2].prompt, found[2].round)):
        found = list(group)
        names: set[str] = set()
        for label, _, line in found:
            if line.level in names:
                raise MxconvError(
                    f"{label}: level {line.level!r:.80} a second time in round {number} of prompt {line.prompt}; each "
                    f"once is required. {REMEDY}"
                )
            names.add(line.level)
        label, members, first = found[0]
        tree = None if members.get("tree") is None else _tree(members["tree"], label)
        if tree is not None and first.num_tokens not in (None, len(tree.emitted)):
            raise _wrong(label, "num_tokens", first.num_tokens, f"the length of tree.emitted, {len(tree.emitted)},")
        texts = [_text(members.get(key, ""), key, label) for key in ("text", "prompt_text")]
        yield TracedRound(number, [line for _, _, line in found], tree, texts[0]), texts[1]


def _tree(members: Any, label: str) -> ProposedTree:
    """Read a tree and check that its members fit together."""
    if not isinstance(members, dict):
        raise _wrong(label, "tree", members, "a JSON object")
    draft = members.get("draft")
    if draft is not None and not isinstance(draft, str):
        raise _wrong(label, "tree.draft", draft, "a name, or null")
    tokens = _numbers(members, "tokens", MOST_TOKENS, label)
    parents = _list(members, "parents", label)
    for node, parent in enumerate(parents):
        if type(parent) is not int or not -1 <= parent < node:
            raise _wrong(label, f"tree.parents[{node}]", parent, "an earlier node, or -1,")
    probabilities = _list(members, "probabilities", label)
    for node, share in enumerate(probabilities):
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 2):
            raise _wrong(label, f"tree.probabilities[{node}]", share, "a probability, or null,")
    for key, values in (("parents", parents), *([("probabilities", probabilities)] if probabilities else [])):
        if len(values) != len(tokens):
            raise _miscounted(label, f"tree.{key}", len(values), f"{len(tokens)}, one for each token,")
    emitted = _numbers(members, "emitted", MOST_TOKENS, label)
    path = _numbers(members, "path", len(tokens) - 1, label)
    for place, (before, node) in enumerate(zip([-1, *path], path, strict=False)):
        if parents[node] != before:
            raise _wrong(label, f"tree.path[{place}]", node, f"a child of node {before}")
    for place, (token, node) in enumerate(zip(emitted, path, strict=False)):
        if token != tokens[node]:
            raise _wrong(label, f"tree.emitted[{place}]", token, f"token {tokens[node]} of the path")
    if len(emitted) > len(path) + 1:
        raise _miscounted(label, "tree.emitted", len(emitted), f"at most {len(path) + 1}, one after the path,")
    texts, emitted_texts = (
        _labels(members, key, count, label) for key, count in (("texts", len(tokens)), ("emitted_texts", len(emitted)))
    )
    return ProposedTree(draft, tokens, parents, probabilities, path, emitted, texts, emitted_texts)


def _list(members: dict[str, Any], key: str, label: str) -> list[Any]:
    values = members.get(key, [])
    if not isinstance(values, list):
        raise _wrong(label, f"tree.{key}", values, "a list")
    if len(values) > MOST_NODES:
        raise _miscounted(label, f"tree.{key}", len(values), f"at most {MOST_NODES:,}")
    return values


def _numbers(members: dict[str, Any], key: str, most: int, label: str) -> list[int]:
    values = _list(members, key, label)
    for place, value in enumerate(values):
        if type(value) is not int or not 0 <= value <= most:
            raise _wrong(label, f"tree.{key}[{place}]", value, f"an integer from 0 to {most}")
    return values


def _labels(members: dict[str, Any], key: str, count: int, label: str) -> list[str]:
    values: Sequence[Any] = _list(members, key, label)
    if len(values) not in (0, count):
        raise _miscounted(label, f"tree.{key}", len(values), f"{count}, one for each token,")
    return [_text(value, f"tree.{key}[{place}]", label) for place, value in enumerate(values)]


def _text(value: Any, key: str, label: str) -> str:
    if not isinstance(value, str):
        raise _wrong(label, key, value, "a text")
    return value


def _wrong(label: str, key: str, value: object, required: str) -> MxconvError:
    return MxconvError(f"{label}: {key} is {value!r:.80}; {required} is required. {REMEDY}")


def _miscounted(label: str, key: str, count: int, required: str) -> MxconvError:
    return MxconvError(f"{label}: {key} has {count:,} values; {required} are required. {REMEDY}")


def _depths(trees: Sequence[ProposedTree]) -> list[DepthSum]:
    widths = [(tree.widths, tree.num_stood) for tree in trees]
    return [
        DepthSum(
            sum(len(own) > depth for own, _ in widths),
            sum(own[depth] for own, _ in widths if len(own) > depth),
            sum(stood > depth for _, stood in widths),
        )
        for depth in range(max((len(own) for own, _ in widths), default=0))
    ]
