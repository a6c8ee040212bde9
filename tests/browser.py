"""Pages in headless Chromium: what a reader's browser makes of them, without a network."""

import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--hide-scrollbars",
)
END = "</body>"


@dataclass(frozen=True)
class Seen:
    """What the probe returned, and what the browser's console said."""

    found: Any
    console: list[str]


Browse = Callable[..., Seen]


def browser(folder: Path) -> Browse:
    """Run a page with a probe: JavaScript whose value, computed after the page's own scripts, comes back.

    The probe sets sliders and reads the document as a reader would, so that pages need no hooks for tests.
    """
    binary = next((path for name in NAMES if (path := shutil.which(name))), None)
    if binary is None:
        pytest.skip(f"no {NAMES[0]} on this machine; Debian's package `chromium` has it")

    def run(page: str, probe: str, width: int = 1280, height: int = 900) -> Seen:
        assert page.count(END) == 1
        script = f'<pre id="found"></pre><script>found.textContent = JSON.stringify((() => {{ {probe} }})());</script>'
        path = folder / "page.html"
        path.write_text(page.replace(END, script + END), "utf-8")
        flags = (*FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}")
        command = [binary, *flags, "--virtual-time-budget=2000", "--enable-logging=stderr", "--dump-dom", path.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        text = done.stdout.partition('<pre id="found">')[2].partition("</pre>")[0]
        for entity, character in (("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")):
            text = text.replace(entity, character)
        return Seen(json.loads(text) if text else None, console)

    return run
