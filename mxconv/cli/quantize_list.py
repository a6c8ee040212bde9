"""`mxconv quantize --from-file`: many conversions, one a line, and a report of what failed and why."""

import json
import subprocess
import sys
import time
from pathlib import Path

import typer

from mxconv.cli.output import Output

FOREIGN = ("from-file", "workers", "json", "help")  # of the whole, not of a line


def quantize_list(path: Path, options: list[str], json_output: bool) -> None:
    """Convert what the lines of a file say, each in a process of its own; one that fails stops no other.

    Args:
        path: JSONL, an object a line: `source`, `output`, and options of `mxconv quantize` by their names. A list
            repeats an option, true gives a flag, false and null leave it out. Empty lines are skipped.
        options: that every line gets before its own.
        json_output: print one JSON object as the last line of stdout.

    Raises:
        typer.BadParameter: the file cannot be read, or holds nothing.
        typer.Exit: with 1, when a line failed.
    """
    out, results = Output(json_output), []
    for number, line in _lines(path):
        begin = time.perf_counter()
        printed, error = _convert(line, options)
        out.line(printed, end="")
        results.append({"line": number, "text": line, "error": error, "seconds": time.perf_counter() - begin})
    failed = [result for result in results if result["error"] is not None]
    for result in failed:
        out.line(f"{path}:{result['line']}: {result['error']}")
    out.line(f"{len(results) - len(failed)} of {len(results)} lines converted")
    out.json({"num_converted": len(results) - len(failed), "num_failed": len(failed), "lines": results})
    if failed:
        raise typer.Exit(1)


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"--from-file {path}: cannot be read ({error})") from error
    numbered = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in numbered if line]
    if not lines:
        raise typer.BadParameter(f"--from-file {path}: holds no line; objects of source and output are required")
    return lines


def _words(line: str) -> list[str]:
    """The arguments of the command that a line describes.

    Raises:
        ValueError: it describes none.
    """
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{error}; a JSON object is required") from error
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__}; a JSON object is required")
    given = {name.replace("_", "-"): value for name, value in found.items()}
    source, output = given.pop("source", None), given.pop("output", None)
    if not isinstance(source, str) or not isinstance(output, str):
        raise ValueError("source and output, two texts, are required")
    words: list[str] = []
    for name, value in given.items():
        if name in FOREIGN:
            raise ValueError(f"{name}: no option of a line")
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, dict | list):
                raise ValueError(f"{name}: an object; a text, a number, true, false or a list is required")
            if each is not None and not isinstance(each, bool):
                words.append(f"--{name}={each}")
            elif each:
                words.append(f"--{name}")
    return [*words, "--output", output, "--", source]


def _convert(line: str, options: list[str]) -> tuple[str, str | None]:
    """Convert one line; returns what was printed, and why it could not be done."""
    try:
        words = _words(line)
    except ValueError as error:
        return "", str(error)
    done = subprocess.run(
        [sys.executable, "-m", "mxconv.cli.main", "quantize", *options, *words],
        check=False,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode == 0:
        return done.stdout, None
    errors = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
    return done.stdout, errors[-1].removeprefix("mxconv: ")
