"""The real command line in a process of its own, with a hub on loopback, a cache and a token."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from commands import run_forked
from hub_server import TOKEN, HubServer

# The command line, and at its end the process's largest resident memory in kB, on stderr. VmHWM, because ru_maxrss of a
# process counts the one that started it.
MEASURED = """
import os, sys
from mxconv.cli.main import main
try:
    main()
finally:
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as status:
            print(next(line for line in status if line.startswith("VmHWM")), file=sys.stderr)
"""


class Client:
    """Runs `mxconv` in a folder."""

    def __init__(self, hub: HubServer, folder: Path) -> None:
        self.folder = folder
        self.environment = hub.environment(folder / "cache", HF_TOKEN=TOKEN)
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", MEASURED, *map(str, arguments)],
            env=self.environment | environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what a failed test left running, so that no other test sees it."""
        for process in self._started:
            process.kill()
            process.communicate()

    def __call__(self, *arguments: object, **environment: str) -> dict[str, Any]:
        """The JSON of a command that succeeds."""
        out, _ = self.output(*arguments, "--json", **environment)
        members: dict[str, Any] = json.loads(out.splitlines()[-1])
        return members

    def output(self, *arguments: object, **environment: str) -> tuple[str, str]:
        """What a command that succeeds prints, on stdout and stderr."""
        done = self._run(arguments, environment)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def peak_memory_bytes(self, *arguments: object) -> int:
        """The largest resident memory of a command that succeeds."""
        process = self.start(*arguments)
        _, err = process.communicate()
        assert process.returncode == 0, err
        return 1024 * int(err.rpartition("VmHWM:")[2].split()[0])

    def error(self, *arguments: object, **environment: str) -> str:
        """The message of a command that fails."""
        done = self._run(arguments, environment)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.partition("mxconv: ")[2].partition("\n")[0]

    def failure(self, *arguments: object) -> str:
        """All that a command that fails prints on stderr."""
        done = self._run(arguments, {})
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr

    def _run(self, arguments: tuple[object, ...], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
        return run_forked(tuple(map(str, arguments)), self.environment | environment, self.folder)
