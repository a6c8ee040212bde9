"""`mxconv quantize --from-file`: many conversions, one a line, and a report of what failed and why."""

import shlex
import subprocess
import sys
import time
from pathlib import Path

import typer

from mxconv.cli.output import console, print_json

FOREIGN = ("--from-file", "--json", "--help")


def quantize_list(path: Path, options: list[str], json_output: bool) -> None:
    """Convert what the lines of a file say, each in a process of its own; one that fails stops no other.

    Args:
        path: each line holds the words of one `mxconv quantize`: SOURCE -o OUTPUT and options. Empty lines and those
            that begin with # are skipped.
        options: that every line gets before its own.
        json_output: print one JSON object as the last line of stdout.

    Raises:
        typer.BadParameter: the file cannot be read, or holds nothing.
        typer.Exit: with 1, when a line failed.
    """
    out, results = console(json_output), []
    for number, line in _lines(path):
        begin = time.perf_counter()
        said, error = _convert(line, options)
        out.print(said, markup=False, highlight=False, end="")
        results.append({"line": number, "words": line, "error": error, "seconds": time.perf_counter() - begin})
    failed = [result for result in results if result["error"] is not None]
    for result in failed:
        out.print(f"{path}:{result['line']}: {result['error']}", markup=False, highlight=False)
    out.print(f"{len(results) - len(failed)} of {len(results)} lines converted", highlight=False)
    if json_output:
        print_json({"num_converted": len(results) - len(failed), "num_failed": len(failed), "lines": results})
    if failed:
        raise typer.Exit(1)


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--from-file {path}: cannot be read ({error})") from error
    numbered = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in numbered if line and not line.startswith("#")]
    if not lines:
        raise typer.BadParameter(f"--from-file {path}: holds no line; SOURCE -o OUTPUT and options are required")
    return lines


def _convert(line: str, options: list[str]) -> tuple[str, str | None]:
    """Convert what one line says; what was printed, and why it could not be done."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        return "", f"{error}; quotes must end"
    if foreign := [word for word in words if word.split("=")[0] in FOREIGN]:
        return "", f"{foreign[0]}: no option of a line"
    done = subprocess.run(
        [sys.executable, "-m", "mxconv.cli.main", "quantize", *options, *words],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return done.stdout, None
    said = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
    return done.stdout, said[-1].removeprefix("mxconv: ")
