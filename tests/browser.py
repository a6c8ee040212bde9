"""Pages in headless Chromium: what a reader's browser makes of them, without a network."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
SECONDS = 60


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
    binary = _binary()

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


def _binary() -> str:
    binary = next((path for name in NAMES if (path := shutil.which(name))), None)
    if binary is None:
        pytest.skip(f"no {NAMES[0]} on this machine; Debian's package `chromium` has it")
    return binary


class LiveBrowser:
    """One tab of headless Chromium, driven over a pipe by its DevTools protocol: JSON, a zero byte after each message.

    `console` holds the texts of errors and warnings, `requested` the URLs that the page asked for.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.console: list[str] = []
        self.requested: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        self.send("Storage.clearDataForOrigin", origin=url.rstrip("/"), storageTypes="local_storage")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def reload(self) -> None:
        self.value("window.isOld = true")
        self.send("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.value(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int, *commands: str) -> None:
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "commands": commands}
        self.send("Input.dispatchKeyEvent", type="rawKeyDown", **event)
        if key == "Enter":
            self.send("Input.dispatchKeyEvent", type="char", text="\r", **event)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def accessible_names(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader hears of."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            (node.get("role", {}).get("value", ""), node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"]
        ]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 16)
            assert more, "the browser is gone"
            self._rest += more
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message.get("method") == "Log.entryAdded":
            self.console.append(parameters["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.console.append(json.dumps(parameters["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled":
            self.console.append(json.dumps(parameters["args"]))
        elif message.get("method") == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])


@contextmanager
def live_browser(folder: Path) -> Iterator[LiveBrowser]:
    """Start a browser whose profile is in a folder."""
    binary = _binary()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    profile = f"--user-data-dir={folder}"
    command = ["bash", "-c", script, binary, *FLAGS, profile, "--remote-debugging-pipe"]
    process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield LiveBrowser(ours_out, ours_in)
    finally:
        os.close(ours_out)
        os.close(ours_in)
        process.terminate()
        process.wait(20)
