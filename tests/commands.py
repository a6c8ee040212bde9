"""`mxconv` as a process of its own: forked from one that has imported it, or where that is not possible, started."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

# Imports modules, then runs a command, or a program in Python, a line: in a child with its own environment, folder,
# stdout and stderr, where waits before a request is sent again are short.
FORKS = """
import importlib, json, os, runpy, sys, time, traceback
from mxconv.cli.main import main
for name in sys.argv[1:]:
    importlib.import_module(name)
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    code = 1
    try:
        os.environ.clear()
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        for number, name in enumerate(("out", "err"), 1):
            os.dup2(os.open(name, os.O_WRONLY, dir_fd=os.open(job["output"], os.O_RDONLY)), number)
        if constants := sys.modules.get("huggingface_hub.constants"):
            importlib.reload(constants)  # of the environment
        if assets := sys.modules.get("huggingface_hub.utils._cache_assets"):
            importlib.reload(assets)
        sys.argv = ["mxconv", *job["arguments"]]
        script = "".join(sys.argv[1:2]).endswith(".py")
        sleep = time.sleep
        time.sleep = lambda seconds: sleep(min(seconds, 0.02))
        if script:
            del sys.argv[0]
            sys.path.insert(0, os.path.dirname(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
        else:
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
"""
IMPORTED = (
    "mxconv.convert", "mxconv.verify", "mxconv.serving.llm_engine", "mxconv.interop.hub.push",
    "huggingface_hub.hf_api", "huggingface_hub.repocard", "jinja2",
)  # fmt: skip
TRAINING = ("mxconv.train.training_loop", "mxconv.train.written")  # and torch with them


def environment() -> dict[str, str]:
    """One thread, so that training is the same run by run."""
    return os.environ | {"OMP_NUM_THREADS": "1"}


def run_mxconv(*arguments: str, launcher: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
    """A command, with torch imported; `launcher` is what comes between the interpreter and the module."""
    if launcher:
        words = [sys.executable, *launcher, "-m", "mxconv.cli.main", *arguments]
        return subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    return run_forked(arguments, environment(), Path.cwd(), TRAINING)


def run_without_torch(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """A command that does not train."""
    return run_forked(arguments, environment(), Path.cwd())


def kill_after(num_steps: int, log: Path, arguments: list[str]) -> None:
    """Begin a training and kill it once so many steps are in its log."""
    words = [sys.executable, "-m", "mxconv.cli.main", *arguments]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    deadline = time.monotonic() + 120
    while not log.is_file() or len(log.read_text().splitlines()) < num_steps:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def run_forked(
    arguments: tuple[str, ...], environment: Mapping[str, str], folder: Path, imported: tuple[str, ...] = IMPORTED
) -> "subprocess.CompletedProcess[str]":
    """A command, or a program in Python, in a folder, with variables that are read after the imported modules."""
    if not hasattr(os, "fork"):
        words = [sys.executable, "-m", "mxconv.cli.main", *arguments]
        return subprocess.run(words, capture_output=True, text=True, env=environment, cwd=folder, check=False)
    with tempfile.TemporaryDirectory() as output:
        for name in ("out", "err"):
            (Path(output) / name).touch()
        job = {"arguments": arguments, "environment": {**environment}, "folder": str(folder), "output": output}
        forks = _forks(imported)
        assert forks.stdin is not None and forks.stdout is not None
        forks.stdin.write(json.dumps(job) + "\n")
        forks.stdin.flush()
        code = int(forks.stdout.readline())
        out, err = ((Path(output) / name).read_text() for name in ("out", "err"))
    return subprocess.CompletedProcess(arguments, code, out, err)


@cache
def _forks(imported: tuple[str, ...]) -> "subprocess.Popen[str]":
    """The process that forks; it ends with this one, which holds its stdin."""
    words = [sys.executable, "-c", FORKS, *imported]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_clean_environment())


def _clean_environment() -> dict[str, str]:
    """Without what libraries of the Hub read when they are imported."""
    return {name: text for name, text in environment().items() if not name.startswith(("HF_", "HUGGING"))}
