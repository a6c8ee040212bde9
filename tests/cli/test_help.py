"""Help pages: lines that stand alone, few options first, groups from one table; and what a shell is offered."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import typer

from mxconv.cli.main import app
from mxconv.cli.output import FIRST, GROUPS, group_of
from mxconv.codecs.mxfp4 import SCALE_RULES
from mxconv.conversion.options import Codec
from mxconv.cost.hardware import hardware_names
from mxconv.drafts.kinds import all_kinds
from mxconv.kernels.engine import kernel_names, native_names


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its words after `mxconv`."""
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {part}".strip())
    if not hasattr(command, "commands"):
        yield name, command


COMMANDS = dict(commands(typer.main.get_command(app)))
NO_BEGINNING = ("Also", "And", "But", "For", "Instead", "None", "Of", "Or", "That", "Which", "Who", "With", "What it")
SENTENCE = re.compile(rf"(?!({'|'.join(NO_BEGINNING)})\b)[A-Z].*\.", re.DOTALL)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_lines_stand_alone_and_at_most_six_options_come_first(name: str) -> None:
    parameters = COMMANDS[name].params
    lines = [each.help or "" for each in parameters] + COMMANDS[name].help.split("\n\n")
    assert [line for line in lines if not SENTENCE.fullmatch(line)] == []
    groups = [group_of(each) for each in parameters if each.param_type_name == "option"]
    assert set(groups) <= {FIRST, *GROUPS} and 1 <= groups.count(FIRST) <= 6, groups


def test_the_table_of_groups_names_each_option_once_and_none_that_is_gone() -> None:
    names = [name for group in GROUPS.values() for name in group.split()]
    known = {each.name for command in COMMANDS.values() for each in command.params}
    assert set(names) - known == {"help"} and len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("quantize", "quantize [OPTIONS] SOURCE"),
        ("serve", "serve [OPTIONS] PACKAGE..."),
        ("cost", "cost [OPTIONS] [PACKAGE]"),
        ("push", "push [OPTIONS] PACKAGE REPO_ID"),
        ("train spire", "train spire [OPTIONS] TEXT..."),
    ],
)
def test_a_page_has_groups_in_order_and_names_of_values_without_types(run: Any, name: str, usage: str) -> None:
    page = run(*name.split(), "--help").stdout
    assert page.startswith(f"Usage: mxconv {usage}\n")
    titles = re.findall(r"^([A-Z][a-z ]+):$", page, re.MULTILINE)
    assert titles[:2] == ["Arguments", FIRST] and titles[2:] == [title for title in GROUPS if title in titles]
    assert not re.search(r"<(int|str|float|list|path)", page, re.IGNORECASE)


def test_every_size_is_given_in_one_way(run: Any) -> None:
    sized = {each.name for command in COMMANDS.values() for each in command.params if "bytes" in (each.name or "")}
    found = [each for command in COMMANDS.values() for each in command.params if each.name in {*sized, "memory"}]
    assert len(found) > 6 and {each.metavar for each in found} == {"SIZE"}
    outcome = run("serve", "p", "--kv-bytes", "5XB")
    assert outcome.exit_code == 2 and "'5XB'; a number of bytes such as 5GB or 512MiB is required." in outcome.stderr


def test_names_are_offered(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MXCONV_COMPLETE", "complete_bash")
    for line, words in (
        ("mxconv quantize s --codec ", list(get_args(Codec))),
        ("mxconv quantize s --scale-rule ", list(SCALE_RULES)),
        ("mxconv quantize s --scale-rule e", ["even"]),
        ("mxconv quantize s --draft ", [kind.name + ":" * bool(kind.subject) for kind in all_kinds()]),
        ("mxconv generate p --kernel ", list(kernel_names())),
        ("mxconv generate p --accept ", ["coupled", "rejection", "block"]),
        ("mxconv bench kernels --kernel ", [*native_names(), "all"]),
        ("mxconv cost --hardware ", [*hardware_names(), "list"]),
        ("mxconv exp", ["export"]),
    ):
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - (not line.endswith(" "))))
        found = run()
        assert (found.stderr, found.stdout.split()) == ("", words), line
