"""The example, as a new user runs it: the model from a folder, its drafts from a Hub."""

import re
import subprocess
import sys
from pathlib import Path

from hub_server import HubServer

EXAMPLES = Path(__file__).parents[3] / "examples"


def test_the_example_decodes_with_two_drafts(three_levels: Path, tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "transformers_generate.py", EXAMPLES / "models" / "pylib-1.5m", "org/drafts"]
    with HubServer({"org/drafts": {"main": three_levels}}) as hub:
        done = subprocess.run(
            [*map(str, command), "def main("],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=hub.environment(tmp_path / "cache"),
        )
    assert done.returncode == 0, done.stderr
    *_, rounds, first, second, verdict = done.stdout.splitlines()
    found = re.fullmatch(r"(\d+) tokens in (\d+) passes of .*pylib-1\.5m", rounds)
    assert found is not None and int(found[2]) < int(found[1]) == 64
    assert re.fullmatch(r"bsfp: \d+ of \d+ proposed tokens accepted", first)
    assert re.fullmatch(r"pylib-0\.2m: \d+ of \d+ proposed tokens accepted", second)
    assert verdict == "the same text as without drafts"
