"""`mxconv serve` in a process of its own, so that clients and engine do not share Python's lock."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile

from mxconv.errors import ModelError

LAST_SECONDS = 15.0  # it promises to end in ten


@contextmanager
def serving(package: str, flags: Sequence[str]) -> Iterator[str]:
    """Serve a package on a free loopback port; the URL. It ends with the context.

    Args:
        package: a folder, a Hub id or a URL.
        flags: of `mxconv serve`.

    Raises:
        ModelError: it does not start; its own words are in the message.
    """
    command = [sys.executable, "-m", "mxconv.cli.main", "serve", package, "--port", "0", "--json", *flags]
    with TemporaryFile("w+") as errors:  # a pipe that nobody reads would stop it when it is full
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                process.wait()
                errors.seek(0)
                said = errors.read().strip().removeprefix("mxconv: ")
                raise ModelError(said or f"{package}: `mxconv serve` ended without a word; a server is required.")
            yield str(json.loads(line)["url"])
        finally:
            process.terminate()
            try:
                process.communicate(timeout=LAST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
