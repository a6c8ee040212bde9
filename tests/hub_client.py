"""The real command line in a process of its own, with a hub on loopback, a cache and a token."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from commands import run_forked
from hub_server import TOKEN, HubServer


class Client:
    """Runs `mxconv` in a folder."""

    def __init__(self, hub: HubServer, folder: Path) -> None:
        self.folder = folder
        self.environment = hub.environment(folder / "cache", HF_TOKEN=TOKEN)
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: object, **environment: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "mxconv.cli.main", *map(str, arguments)],
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
