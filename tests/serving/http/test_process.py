"""`mxconv serve` as a process of its own: what it prints, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from commands import run_forked
from http_servers import post_head, serve

SECONDS = 60
MOST_SECONDS = 10  # from a signal to the end, as docs/serving.md promises
PATH = "/v1/completions"
KEY = "from-the-environment"


def test_one_line_says_where_it_listens_and_several_packages_have_one_address(
    package: Path, plain_package: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("from-a-file\n")
    words = (str(plain_package), "--json", "--api-key-file", str(key), "--model-name", "mine", "--model-name", "yours")
    with serve(package, *words, MXCONV_API_KEY="not-this") as (process, line):
        found = json.loads(line)
        assert found["model"] == "mine" and found["models"] == ["mine", "yours"]
        assert found["url"].startswith("http://127.0.0.1:")
        for name in found["models"]:
            body, headers = {"model": name, "prompt": "import os\n", "max_tokens": 2}, {"x-api-key": "from-a-file"}
            answer = httpx.post(found["url"] + PATH, json=body, headers=headers, timeout=SECONDS).json()
            assert answer["model"] == name
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
        assert process.communicate() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to send")
def test_sigterm_leaves_nobody_without_an_end_and_waits_for_nobody_that_hangs(package: Path) -> None:
    body = {"prompt": "import os\n", "max_tokens": 480, "n": 2, "temperature": 1.5, "stream": True}
    raw = json.dumps(body | {"n": 16}).encode()
    whole = post_head(PATH, len(raw), "from-the-environment") + raw
    with (
        serve(package, "--kv-dtype", "bf16", MXCONV_API_KEY="from-the-environment") as (process, line),
        ExitStack() as stack,
    ):
        url = line.split()[-1]
        assert line == f"{package.name} is served at {url}\n"
        assert httpx.get(url + "/v1/models").status_code == 401
        peers = []
        for sent in (b"", b"POST /v1/comp", whole[:-5], whole, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            peer = stack.enter_context(socket.socket())
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # who does not read fills it soon
            host, _, port = url.removeprefix("http://").partition(":")
            peer.connect((host, int(port)))
            peer.sendall(sent)
            peers.append(peer)
        assert peers[3].recv(1) and peers[4].recv(1)  # both are served
        ends: list[str] = []
        started = threading.Barrier(5)  # those who ask, and the one that sends the signal

        def ask(number: int) -> None:
            mine, key = body | {"seed": number}, {"Authorization": f"Bearer {KEY}"}
            with httpx.stream("POST", url + PATH, json=mine, headers=key, timeout=SECONDS) as got:
                lines = got.iter_lines()
                next(lines)
                started.wait(SECONDS)
                ends.append([line for line in lines if line][-1])

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        started.wait(SECONDS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(2 * MOST_SECONDS) == 0  # twice, for a busy machine
        for thread in threads:
            thread.join(SECONDS)
        assert len(ends) == 4
        assert all(end == "data: [DONE]" or '"shutting_down"' in end for end in ends)


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot be read"), ("two words", "no API key"), ("schlüssel", "no API key")],
)
def test_a_file_without_a_key_is_told(package: Path, tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    done = run_forked(("serve", str(package), "--api-key-file", str(path)), os.environ, tmp_path)
    assert done.returncode == 1 and done.stderr.startswith(f"mxconv: {path}: ") and message in done.stderr


def test_without_the_extra_it_says_what_to_install(package: Path) -> None:
    """And the command line imports no server before it is to serve."""
    code = (
        "import sys, mxconv.cli.main; names = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not names & {'fastapi', 'uvicorn', 'starlette', 'prometheus_client'}\n"
        "sys.modules['fastapi'] = None; sys.argv = ['mxconv', 'serve', sys.argv[1]]; mxconv.cli.main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(package)], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 1
    assert "fastapi is not installed" in done.stderr and "pip install '.[serve]'" in done.stderr
