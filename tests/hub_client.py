"""The real command line as a process of its own, with a hub on loopback, a cache and a token."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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

    def start(self, *arguments: object, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-c", MEASURED, *map(str, arguments)],
            env=self.environment | environment,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: object, **environment: str) -> dict[str, Any]:
        """The JSON of a command that succeeds."""
        out, _ = self.output(*arguments, "--json", **environment)
        members: dict[str, Any] = json.loads(out.splitlines()[-1])
        return members

    def output(self, *arguments: object, **environment: str) -> tuple[str, str]:
        """What a command that succeeds prints, on stdout and stderr."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate()
        assert process.returncode == 0, err
        return out, err

    def peak_memory_bytes(self, *arguments: object) -> int:
        """Of a command that succeeds."""
        _, err = self.output(*arguments)
        return 1024 * int(err.rpartition("VmHWM:")[2].split()[0])

    def error(self, *arguments: object, **environment: str) -> str:
        """The message of a command that fails."""
        process = self.start(*arguments, **environment)
        out, err = process.communicate()
        assert process.returncode == 1, out + err
        return err.partition("mxconv: ")[2].partition("\n")[0]
