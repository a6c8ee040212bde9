"""docs/methods.md claims nothing that is not there, a test runs what it has, and what it calls missing is missing."""

import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer

from mxconv.arch.families.registry import FAMILIES
from mxconv.cli.main import app
from mxconv.drafts.kinds import parse_draft
from mxconv.errors import MxconvError

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "methods.md").read_text()
HEADER = ["method", "what it does", "status", "where, or what it would need", "shown by, or what is absent"]
PAPERS = ("ML-SpecQD", "SPEQ", "SPIRe", "MLP speculator")  # whose rows say so first; all others are entries of the list
SUMMARY = re.compile(r"(\d+) methods of five texts: mxconv has (\d+) in whole, (\d+) in part, (\d+) not at all\.")
SPAN = re.compile(r"`([^`]*)`")
FLAG = re.compile(r"--[a-z][a-z-]*")
TEST = re.compile(r"tests/[a-z0-9_/]+\.py::test_[a-z0-9_]+")


@dataclass(frozen=True)
class Row:
    method: str
    what: str
    status: str
    where: str
    shown: str

    @property
    def is_entry(self) -> bool:
        """Whether it is an entry of the list and not a technique of a paper."""
        return not self.method.startswith(tuple(f"{paper}:" for paper in PAPERS))


def rows_of(text: str) -> list[Row]:
    """The rows of all tables."""
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            assert len(cells) == len(HEADER), line
            if cells != HEADER and set(line) != set("|-"):
                found.append(Row(*cells))
    return found


def problems(text: str) -> list[str]:
    """What is wrong with a page, a line each."""
    rows = rows_of(text)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    found = [problem for span in SPAN.findall(prose) if (problem := span_problem(span))]
    for row in rows:
        found += [problem for span in SPAN.findall(row.where) if (problem := span_problem(span))]
        if row.status not in ("yes", "part", "no"):
            found.append(f"{row.method}: status {row.status!r}; yes, part or no is required")
        elif row.status == "no":
            found += absence_problems(row)
        elif not SPAN.search(row.where):
            found.append(f"{row.method}: {row.status}, and {row.where!r} names nothing in code type")
        else:
            found += shown_problems(row)
        if not row.what or not row.where:
            found.append(f"{row.method}: an empty cell")
    counts = [len(rows), *(sum(row.status == status for row in rows) for status in ("yes", "part", "no"))]
    summary = SUMMARY.search(text)
    if summary is None or [int(number) for number in summary.groups()] != counts:
        found.append(f"summary: {summary and summary[0]}; the rows say {counts}")
    num_entries = sum(row.is_entry for row in rows)
    if f" {num_entries} entries" not in text:
        found.append(f"entries of the list: the rows say {num_entries}")
    return found


def absence_problems(row: Row) -> list[str]:
    """What is wrong with a row of something missing: it names where mxconv has it, or what it calls absent is there."""
    if SPAN.search(row.where):
        return [f"{row.method}: no, and yet {row.where} names where mxconv has it"]
    absent = SPAN.findall(row.shown)
    if not absent and row.shown != "-":
        return [f"{row.method}: {row.shown!r}; something in code type that is absent, or a dash, is required"]
    return [f"{row.method}: `{span}` is called absent and is there" for span in absent if span_problem(span) is None]


def shown_problems(row: Row) -> list[str]:
    """What is wrong with the tests that a row names: one is not there."""
    spans = SPAN.findall(row.shown)
    if not spans or not all(TEST.fullmatch(span) for span in spans):
        return [f"{row.method}: {row.shown!r}; tests as `tests/FILE.py::test_name` are required"]
    found = []
    for span in spans:
        file, _, name = span.partition("::")
        source = (ROOT / file).read_text("utf-8") if (ROOT / file).is_file() else ""
        if f"\ndef {name}(" not in source:
            found.append(f"{row.method}: {span} is no test")
    return found


def span_problem(span: str) -> str | None:
    """What is wrong with something in code type: a command, a flag, a draft, a path, or a name in a module."""
    if span.startswith("mxconv "):
        return command_problem(span)
    if span.startswith("model_type "):
        return None if span.removeprefix("model_type ") in FAMILIES else f"{span}: no family has it"
    if span.startswith("--draft "):
        try:
            parse_draft(span.removeprefix("--draft "))
        except MxconvError as error:
            return f"{span}: {error}"
        return None
    if span.startswith("--"):
        having = [command for command in commands().values() if span.split()[0] in command]
        problem = f"{span}: no command has this flag"
        for command in having:
            problem = value_problem(span, command) or ""
            if not problem:
                return None
        return problem
    if "/" in span:
        return None if (ROOT / span).exists() else f"{span}: does not exist"
    try:
        if not span.startswith("mxconv."):
            return f"{span}: is no command, flag, path or name of mxconv"
        pkgutil.resolve_name(span)
    except (ImportError, AttributeError) as error:
        return f"{span}: {error}"
    return None


def command_problem(span: str) -> str | None:
    words = span.split()[1:]
    name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in commands()), None)
    if name is None:
        return f"{span}: no such command"
    unknown = [flag for flag in FLAG.findall(span) if flag not in commands()[name]]
    return f"{span}: no flag {unknown[0]}" if unknown else value_problem(span, commands()[name])


def value_problem(span: str, flags: dict[str, Any]) -> str | None:
    """What is wrong with the values of flags: one that the shell would not complete to, where it knows them."""
    words = span.split()
    for flag, value in pairwise(words):
        if flag in flags and flag != "--draft" and not value.startswith("-"):
            known = [item.value for item in flags[flag].shell_complete(None, "")]
            if known and value not in known:
                return f"{span}: {value!r}; one of {', '.join(known)} is required"
    return None


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


def test_the_page_says_what_is_there() -> None:
    assert problems(PAGE) == []


def test_the_page_has_a_row_for_every_entry_of_the_list_and_every_technique_once() -> None:
    rows = rows_of(PAGE)
    assert sum(row.is_entry for row in rows) == 48
    assert len({row.method for row in rows}) == len(rows)
    for paper in PAPERS:
        assert any(row.method.startswith(f"{paper}:") for row in rows)
