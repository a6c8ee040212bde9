"""No module is imported with another that only Unix has: what needs one imports it in a function, beside a fallback."""

import ast
from collections.abc import Iterator
from pathlib import Path

import mxconv

UNIX = {"fcntl", "resource", "termios", "pwd", "grp", "syslog", "tty", "pty", "readline"}


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """The modules that are imported when a file is, those under `if` and `try` too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield (child.module or "").partition(".")[0]
        elif not isinstance(child, ast.FunctionDef | ast.Lambda):
            yield from imported_at_once(child)


def test_no_import_needs_a_module_of_unix() -> None:
    files = sorted(Path(mxconv.__file__).parent.rglob("*.py"))
    found = {path.name: UNIX & {*imported_at_once(ast.parse(path.read_text()))} for path in files}
    assert len(files) > 200 and {name: modules for name, modules in found.items() if modules} == {}
