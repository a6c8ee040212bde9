"""Where `--workers` leads, and what is said where it leads nowhere."""

import socket
import subprocess
import sys

import pytest

from mxconv.cluster.address import ClusterAddress, parse_workers
from mxconv.cluster.session import cluster
from mxconv.errors import MxconvError


def test_what_workers_are_asked_for() -> None:
    assert parse_workers("threads") is None
    assert parse_workers("ray") == ClusterAddress(None)
    assert parse_workers("ray:auto") == ClusterAddress("auto")
    assert parse_workers("ray:10.0.0.7:6379") == ClusterAddress("10.0.0.7:6379")


@pytest.mark.parametrize("text", ["", "Ray", "ray:", "ray:host", "ray:host:", "ray:ray://h:1", "ray:h:1 ", "processes"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MxconvError, match=r"threads, ray, ray:auto or ray:HOST:PORT is required"):
        parse_workers(text)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MxconvError, match=r"the extra `ray` is required. Install it with `pip install 'mxconv\[ray\]'`"),
        cluster(ClusterAddress(), 1),
    ):
        pass


def test_a_head_that_does_not_answer_is_named_at_once() -> None:
    pytest.importorskip("ray")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with (
        pytest.raises(MxconvError, match=rf"ray:127.0.0.1:{port}: nobody answers there"),
        cluster(ClusterAddress(f"127.0.0.1:{port}"), 1),
    ):
        pass


def test_nobody_imports_ray_who_did_not_ask() -> None:
    code = "import sys, mxconv.cli.main, mxconv.cluster.session, mxconv.convert; assert 'ray' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
