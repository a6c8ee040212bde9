"""`mxconv` as a process of its own, on one thread, so that training is the same run by run."""

import os
import subprocess
import sys


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def run_mxconv(*arguments: str, launcher: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """With `launcher`, what stands between the interpreter and the module."""
    words = [sys.executable, *launcher, "-m", "mxconv.cli.main", *arguments]
    return subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
