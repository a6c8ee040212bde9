"""docs/research/methods.md counts its rows, names what exists, and a row of what runs names a test."""

import pkgutil
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import typer

from mxconv.arch.families.registry import FAMILIES
from mxconv.cli.main import app
from mxconv.drafts.kinds import parse_draft
from mxconv.errors import MxconvError

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "research" / "methods.md").read_text()
PAPERS = ("ML-SpecQD:", "SPEQ:", "SPIRe:", "MLP speculator:")  # techniques; all other rows are entries of the list
SUMMARY = re.compile(r"(\d+) methods of five texts: mxconv has (\d+) in whole, (\d+) in part, (\d+) not at all\.")
SPAN = re.compile(r"`([^`]*)`")


class Row(NamedTuple):
    method: str
    what: str
    status: str
    where: str
    shown: str


CELLS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| method |")
]
ROWS = [Row(*cells) if len(cells) > 2 else Row(*cells, "no", "out of scope", "-") for cells in CELLS]


def exists(span: str) -> bool:
    """Whether something in code type is there: a command, a flag, a draft, a family, a path, a test or a name."""
    if span.startswith("mxconv "):
        command = max((name for name in commands() if f"{span} ".startswith(f"mxconv {name} ")), default="", key=len)
        flags = re.findall(r"--[a-z-]+", span)
        return bool(command) and all(flag in commands()[command] for flag in flags) and values_exist(span)
    if span.startswith("model_type "):
        return span.removeprefix("model_type ") in FAMILIES
    if span.startswith("--draft "):
        try:
            return bool(parse_draft(span.removeprefix("--draft ")))
        except MxconvError:
            return False
    if span.startswith("--"):
        return any(span.split()[0] in flags for flags in commands().values()) and values_exist(span)
    if "::" in span:
        file, _, name = span.partition("::")
        return (ROOT / file).is_file() and f"\ndef {name}(" in (ROOT / file).read_text("utf-8")
    if "/" in span:
        return (ROOT / span).exists()
    try:
        return bool(pkgutil.resolve_name(span))
    except (ImportError, AttributeError, ValueError):
        return False


def values_exist(span: str) -> bool:
    """Whether a value after a flag is one that the shell would complete to, where it knows them."""
    for flag, value in re.findall(r"(--[a-z-]+) ([a-z0-9]\S*)", span):
        choices = [parameter for flags in commands().values() if (parameter := flags.get(flag))]
        known = {item.value for parameter in choices for item in parameter.shell_complete(None, "")}
        if flag != "--draft" and known and value not in known:
            return False
    return True


@cache
def commands() -> dict[str, dict[str, Any]]:
    """Parameters by command, as in `bench kernels`, and flag, of the real program."""
    found: dict[str, dict[str, Any]] = {}

    def walk(command: Any, name: str) -> None:
        found[name] = {flag: parameter for parameter in command.params for flag in parameter.opts if flag[:2] == "--"}
        for word, inner in getattr(command, "commands", {}).items():
            walk(inner, f"{name} {word}".strip())

    walk(typer.main.get_command(app), "")
    return {name: flags for name, flags in found.items() if name}


def test_every_row_names_what_is_there_and_a_test_of_it_or_what_is_absent() -> None:
    for row in ROWS:
        where, shown = SPAN.findall(row.where), SPAN.findall(row.shown)
        assert all(row), row
        if row.status == "no":
            assert not where and (shown or row.shown == "-"), row
            assert not any(map(exists, shown)), f"{row.method}: {row.shown} is there"
        else:
            assert row.status in ("yes", "part") and where and shown, row
            assert all(span.startswith("tests/") and "::" in span for span in shown), row
            assert [span for span in (*where, *shown) if not exists(span)] == [], row.method


def test_the_counts_are_those_of_the_rows() -> None:
    statuses = Counter(row.status for row in ROWS)
    summary = SUMMARY.search(PAGE)
    assert summary is not None
    assert list(map(int, summary.groups())) == [len(ROWS), *(statuses[status] for status in ("yes", "part", "no"))]
    assert sum(not row.method.startswith(PAPERS) for row in ROWS) == 48 and " 48 entries" in PAGE
    assert len({row.method for row in ROWS}) == len(ROWS)
