"""What methods propose a round, and what that brings: acceptance that was measured on a trained model, from a file.

A JSON list of methods. Each has `method`, its name; `draft`, one of KINDS; `source`, where its figures come from; and

    accepted   [i] is the mean of "tokens 1 to i + 1 of a chain stood": a plan for each length k, of 1 + the sum of the
               first k tokens a round
    plans      candidate trees: heads, candidates, rows that verification has for them, tokens_a_round, and draft_rows,
               rows of a sequence in each pass of the draft

or both. examples/acceptance_by_position.json is such a file, and what batch_maps.py reads unless another is named.
"""

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from mxconv.errors import MxconvError

KINDS = (
    "self-draft-4",
    "magicdec-16",
    "magicdec-4",
    "spire-16",
    "spire-4",
    "speculator",
)
MOST_TOKENS = 63  # beside a sequence's last one, in a pass
KEYS = {"method", "draft", "source", "accepted", "plans"}
PLAN_KEYS = {"heads", "candidates", "rows", "tokens_a_round", "draft_rows"}


@dataclass(frozen=True)
class Plan:
    """A round of one sequence.

    Args:
        draft_rows: of each pass of the draft.
        rows: that the target verifies beside the last token; a mean.
        tokens_a_round: what stands and the target's own, a mean.
        candidates: paths of the tree; 1 is a chain.
    """

    draft_rows: tuple[int, ...]
    rows: float
    tokens_a_round: float
    candidates: int = 1

    @property
    def label(self) -> str:
        """Its length k, and candidates of a tree."""
        return f"{len(self.draft_rows)}" + (f" x {self.candidates}" if self.candidates > 1 else "")


@dataclass(frozen=True)
class Method:
    """What drafts, and the plans that there are for it."""

    name: str
    draft: str
    source: str
    plans: tuple[Plan, ...]


def read_methods(path: Path) -> list[Method]:
    """Those of a file.

    Raises:
        MxconvError: it is no such file, or a figure is none that can be measured.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MxconvError(f"{path}: {error}; a JSON list of methods is required. See {Path(__file__).name}.") from error
    if not isinstance(found, list) or not found:
        raise MxconvError(f"{path}: no list of methods; at least one is required. See {Path(__file__).name}.")
    methods = [_method(members, f"{path}: method {number}") for number, members in enumerate(found)]
    if len({method.name for method in methods}) < len(methods):
        raise MxconvError(f"{path}: two methods of one name; a name each is required. Name them apart.")
    return methods


def _method(members: Any, label: str) -> Method:
    if not isinstance(members, dict):
        _refuse(label, members, "an object")
    if unknown := sorted(set(members) - KEYS):
        _refuse(label, f"key {unknown[0]!r}", f"only {', '.join(sorted(KEYS))}")
    name, draft, source = (members.get(key) for key in ("method", "draft", "source"))
    if not isinstance(name, str) or not name:
        _refuse(f"{label}: method", name, "a name")
    if draft not in KINDS:
        _refuse(f"{label}: draft", draft, f"one of {', '.join(KINDS)}")
    if not isinstance(source, str) or not source:
        _refuse(f"{label}: source", source, "where the figures come from")
    chains = _chains(members.get("accepted", []), f"{label}: accepted")
    trees = [_tree(plan, f"{label}: plan {number}") for number, plan in enumerate(members.get("plans", []))]
    if trees and not draft.startswith("speculator"):
        _refuse(f"{label}: plans", f"candidate trees of {draft}", "a speculator")
    if not chains and not trees:
        _refuse(label, "neither accepted nor plans", "at least one plan")
    return Method(name, draft, source, (*chains, *trees))


def _chains(accepted: Any, label: str) -> list[Plan]:
    if not isinstance(accepted, list) or len(accepted) > MOST_TOKENS:
        _refuse(label, accepted, f"a list of at most {MOST_TOKENS} means by position")
    before = 1.0
    for place, mean in enumerate(accepted):
        if not _is_number(mean) or not 0 <= mean <= before:
            _refuse(f"{label}[{place}]", mean, f"a mean of what stood up to there, from 0 to {before:g}")
        before = mean
    return [Plan((1,) * k, k, 1 + sum(accepted[:k])) for k in range(1, len(accepted) + 1)]


def _tree(members: Any, label: str) -> Plan:
    if not isinstance(members, dict) or set(members) != PLAN_KEYS:
        _refuse(label, members, f"an object of {', '.join(sorted(PLAN_KEYS))}")
    heads, candidates, rows, tokens, draft_rows = (
        members[key] for key in ("heads", "candidates", "rows", "tokens_a_round", "draft_rows")
    )
    for key in ("heads", "candidates"):
        if type(members[key]) is not int or not 1 <= members[key] <= MOST_TOKENS:
            _refuse(f"{label}: {key}", members[key], f"an integer from 1 to {MOST_TOKENS}")
    if not isinstance(draft_rows, list) or len(draft_rows) != heads:
        _refuse(f"{label}: draft_rows", draft_rows, f"rows of each of {heads} passes")
    if not all(type(count) is int and 1 <= count <= MOST_TOKENS for count in draft_rows):
        _refuse(f"{label}: draft_rows", draft_rows, f"integers from 1 to {MOST_TOKENS}")
    if not _is_number(rows) or not heads <= rows <= MOST_TOKENS:
        _refuse(f"{label}: rows", rows, f"a mean from {heads}, a path, to {MOST_TOKENS}")
    if not _is_number(tokens) or not 1 <= tokens <= heads + 1:
        _refuse(f"{label}: tokens_a_round", tokens, f"a mean from 1 to {heads + 1}, all of a path and the target's own")
    return Plan(tuple(draft_rows), rows, tokens, candidates)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _refuse(label: str, found: object, required: str) -> NoReturn:
    raise MxconvError(f"{label}: {found}; {required} is required. Measure it, as acceptance_by_position.py does.")
