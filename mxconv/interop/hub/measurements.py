"""What `mxconv bench decode --json` measured of a package, for the tables of its card."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import read_json_object
from mxconv.errors import MxconvError


@dataclass(frozen=True)
class Row:
    """One strategy: greedy, a draft alone, or all levels."""

    strategy: str
    tokens_per_second: float
    speedup: float
    acceptance: str


@dataclass(frozen=True)
class Measurements:
    """A run of `mxconv bench decode`."""

    cpu: str | None
    threads: int | None
    num_prompts: int
    rows: tuple[Row, ...]
    target: str | None = None  # the level that was decoded, where the run says so


def read_measurements(path: Path) -> Measurements:
    """Read the object that `mxconv bench decode --json` printed.

    Raises:
        MxconvError: it is no such object, or its tokens were not those of greedy decoding.
    """
    members = read_json_object(path, unique_keys=True)
    try:
        results = list(members["results"])
        rows = tuple(_row(result) for result in results)
        if not all(result["identical_to_greedy"] for result in results):
            raise MxconvError(
                f"{path}: a strategy whose tokens differ from those of greedy decoding; none may. "
                "Please report this as a defect."
            )
        machine = dict(members.get("machine") or {})
        cpu, threads, target = machine.get("cpu"), machine.get("threads"), members.get("target")
        return Measurements(
            cpu=cpu if isinstance(cpu, str) else None,
            threads=threads if isinstance(threads, int) else None,
            num_prompts=int(results[0]["num_prompts"]),
            rows=rows,
            target=target if isinstance(target, str) else None,
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MxconvError(
            f"{path}: no result of decoding ({type(error).__name__}: {error}); the object that "
            "`mxconv bench decode PACKAGE --json` prints is required. Write its last line into the file."
        ) from error


def _row(result: dict[str, Any]) -> Row:
    rates = [None if rate is None else float(rate) for rate in result["acceptance_rates"]]
    numbers = float(result["tokens_per_second"]), float(result["speedup"])
    if not all(math.isfinite(number) for number in (*numbers, *(rate for rate in rates if rate is not None))):
        raise ValueError("a number that is not finite")
    return Row(str(result["strategy"]), *numbers, ", ".join("-" if rate is None else f"{rate:.3f}" for rate in rates))
