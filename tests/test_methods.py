"""docs/methods.md claims nothing that is not there: counts, statuses, commands, flags, drafts, files, names."""

import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from mxconv.checkpoint.draft_spec import parse_draft
from mxconv.cli.main import app
from mxconv.errors import MxconvError

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "methods.md").read_text()
HEADER = ["method", "what it does", "status", "where, or what it would need"]
PAPERS = ("ML-SpecQD", "SPEQ", "SPIRe", "MLP speculator")  # whose rows say so first; all others are entries of the list
SUMMARY = re.compile(r"(\d+) methods of five texts: mxconv has (\d+) in whole, (\d+) in part, (\d+) not at all\.")
SPAN = re.compile(r"`([^`]*)`")
FLAG = re.compile(r"--[a-z][a-z-]*")


@dataclass(frozen=True)
class Row:
    method: str
    what: str
    status: str
    where: str

    @property
    def is_entry(self) -> bool:
        """Of the list."""
        return not self.method.startswith(tuple(f"{paper}:" for paper in PAPERS))


def rows_of(text: str) -> list[Row]:
    """The rows of all tables.

    Raises:
        ValueError: a row has not four cells.
    """
    found = []
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) != len(HEADER):
                raise ValueError(f"{line}: {len(cells)} cells; {len(HEADER)} are required")
            if cells != HEADER and set(line) != set("|-"):
                found.append(Row(*cells))
    return found


def problems(text: str) -> list[str]:
    """What is wrong with a page, a line each."""
    rows = rows_of(text)
    found = [problem for span in SPAN.findall(text) if (problem := span_problem(span))]
    for row in rows:
        if row.status not in ("yes", "part", "no"):
            found.append(f"{row.method}: status {row.status!r}; yes, part or no is required")
        elif row.status == "no" and SPAN.search(row.where):
            found.append(f"{row.method}: no, and yet {row.where} names where mxconv has it")
        elif row.status != "no" and not SPAN.search(row.where):
            found.append(f"{row.method}: {row.status}, and {row.where!r} names nothing in code type")
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


def span_problem(span: str) -> str | None:
    """What is wrong with something in code type: a command, a flag, a draft, a path, or a name in a module."""
    if span.startswith("mxconv "):
        return command_problem(span)
    if span.startswith("--draft "):
        try:
            parse_draft(span.removeprefix("--draft "))
        except MxconvError as error:
            return f"{span}: {error}"
        return None
    if span.startswith("--"):
        known = {flag for flags in commands().values() for flag in flags}
        return None if span.split()[0] in known else f"{span}: no command has this flag"
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
    return f"{span}: no flag {unknown[0]}" if unknown else None


@cache
def commands() -> dict[str, set[str]]:
    """Flags by command, as in `bench kernels`, of the real program."""
    found: dict[str, set[str]] = {}

    def walk(command: Any, name: str) -> None:
        found[name] = {flag for parameter in command.params for flag in parameter.opts if flag.startswith("--")}
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


def test_the_checker_knows_the_program() -> None:
    assert {"quantize", "bench kernels", "tune layer-skip", "train ngram"} <= set(commands())
    assert "--num-draft-tokens" in commands()["generate"]


@pytest.mark.parametrize(
    ("status", "where", "complaint"),
    [
        ("yes", "`--clairvoyance`", "--clairvoyance: no command has this flag"),
        ("yes", "`--draft crystal-ball:PATH`", "kind 'crystal-ball'"),
        ("yes", "`--draft layer-skip`", "names no LAYERS"),
        ("yes", "`mxconv foresee PACKAGE`", "no such command"),
        ("yes", "`mxconv quantize --segments paper --clairvoyance`", "no flag --clairvoyance"),
        ("yes", "`mxconv inspect --segments paper`", "no flag --segments"),
        ("yes", "`mxconv/speculative/oracle.py`", "does not exist"),
        ("yes", "`mxconv.speculative.oracle`", "oracle"),
        ("yes", "`mxconv.cost.throughput.unit_saved`", "unit_saved"),
        ("yes", "`clairvoyance`", "is no command, flag, path or name"),
        ("yes", "somewhere", "names nothing"),
        ("no", "`--confidence`", "names where mxconv has it"),
        ("maybe", "`--confidence`", "status 'maybe'"),
    ],
)
def test_a_page_that_claims_too_much_fails(status: str, where: str, complaint: str) -> None:
    row = f"| SPEQ: clairvoyance | sees what comes | {status} | {where} |"
    counts = [str(int(status == each)) for each in ("yes", "part", "no")]
    summary = "1 methods of five texts: mxconv has {} in whole, {} in part, {} not at all.".format(*counts)
    (found,) = problems(f"{summary} 0 entries.\n\n| {' | '.join(HEADER)} |\n|---|---|---|---|\n{row}\n")
    assert complaint in found


@pytest.mark.parametrize("place", range(4))
def test_a_wrong_count_fails(place: int) -> None:
    summary = SUMMARY.search(PAGE)
    assert summary is not None
    wrong = PAGE[: summary.start(place + 1)] + "7" + PAGE[summary.start(place + 1) :]
    (found,) = problems(wrong)
    assert found.startswith("summary: ")


def test_a_missing_row_fails() -> None:
    line = next(line for line in PAGE.splitlines() if line.startswith("| CopySpec: "))
    assert len(problems(PAGE.replace(line + "\n", ""))) == 2  # the summary, and the entries of the list


def test_a_row_of_another_width_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 cells; 4 are required"):
        problems("| SPEQ: clairvoyance | sees what comes | no |")
