"""The house: names that are used once, imports without a circle or what only Unix has, sizes to read."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "mxconv").rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
NAMED = [path for path in FILES if path.stem not in ("__init__", "__main__")]


def imported(path: Path) -> set[str]:
    """The modules of mxconv that a file imports anywhere, for types alone or inside a function too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member if member in MODULES else node.module for member in members}
    return found & MODULES.keys()


def repeated(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_a_modules_name_is_used_once() -> None:
    assert repeated([path.stem for path in NAMED]) == []


def test_a_classs_name_is_used_once() -> None:
    nodes = [node for path in FILES for node in ast.walk(ast.parse(path.read_text()))]
    assert repeated([node.name for node in nodes if isinstance(node, ast.ClassDef) and node.name[0] != "_"]) == []


def test_imports_have_no_circle_even_for_types() -> None:
    lazy = {"mxconv": set[str]()}  # mxconv.load, which a user asks for by name: imported when it is first asked for
    graph = {module: imported(path) for module, path in MODULES.items()} | lazy
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


def test_no_module_of_ours_is_imported_by_a_string() -> None:
    """So that this file's checks and import-linter's see every import."""
    by_name = re.compile(r"""(?:import_module|__import__)\(\s*f?["']mxconv""")
    assert [str(path) for path in FILES if by_name.search(path.read_text())] == []


def test_small_files_have_a_reason_in_contributing() -> None:
    """A row of the table names a file, or a folder whose files are all of one kind."""
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Small files")[1].split("\n## ")[0]
    allowed = re.findall(r"^\| `(mxconv/[\w/.]+)`", table, re.MULTILINE)
    small = {str(path.relative_to(ROOT)) for path in NAMED if len(path.read_text().splitlines()) < 40}
    assert sorted(path for path in small if not path.startswith(tuple(allowed))) == []
    assert [entry for entry in allowed if not any(path.startswith(entry) for path in small)] == []


def test_files_that_comments_name_are_there() -> None:
    """Paths from the root, or from mxconv, in Python and C++; other projects' files are named without such a folder."""
    folders = [each.name for where in (ROOT, ROOT / "mxconv") for each in where.iterdir() if each.is_dir()]
    path = re.compile(rf"(?<![\w./-])(?:{'|'.join(folders)})/[\w./-]*\w\.(?:pyi?|hpp|cpp|inl|md|jsonl?)\b")
    sources = [each for each in (ROOT / "mxconv").rglob("*") if each.suffix in (".py", ".pyi", ".hpp", ".cpp", ".inl")]
    named = {(str(source.relative_to(ROOT)), name) for source in sources for name in path.findall(source.read_text())}
    assert len(named) > 80
    assert sorted(each for each in named if not any((ROOT / up / each[1]).exists() for up in (".", "mxconv"))) == []


# ---- what only Unix has ----

UNIX = {"fcntl", "resource", "termios", "pwd", "grp", "syslog", "tty", "pty", "readline"}


def at_once(node: ast.AST) -> Iterator[str]:
    """The modules that are imported when a file is, those under `if` and `try` too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield (child.module or "").partition(".")[0]
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from at_once(child)


def test_no_import_needs_a_module_of_unix() -> None:
    found = {path.name: UNIX & {*at_once(ast.parse(path.read_text()))} for path in FILES}
    assert {name: modules for name, modules in found.items() if modules} == {}
