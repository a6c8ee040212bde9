"""Where `--workers` leads, and what is said where it leads nowhere."""

import socket
import sys
from pathlib import Path

import pytest

from mxconv.cluster import _connect, cluster, parse_workers
from mxconv.errors import MxconvError


def test_what_workers_are_asked_for() -> None:
    words = ("ray", "ray:auto", "ray:10.0.0.7:6379", "ray:[::1]:6379")
    assert [parse_workers(text) for text in words] == ["local", "auto", "10.0.0.7:6379", "[::1]:6379"]


@pytest.mark.parametrize("text", ["", "Ray", "ray:", "ray:host", "ray:host:", "ray:ray://h:1", "ray:h:1 ", "processes"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MxconvError, match=r"threads, ray, ray:auto or ray:HOST:PORT is required"):
        parse_workers(text)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(
            MxconvError,
            match=r"the extra `ray` is required. Leave --workers out, or install it. Run: pip install '.\[ray\]'",
        ),
        cluster("local", 1),
    ):
        pass


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> str:
    """An address at which nobody listens, and little patience with it."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.setattr("mxconv.cluster.PATIENCE_SECONDS", 2.0)
    with socket.socket() as inputs:
        inputs.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{inputs.getsockname()[1]}"


def test_a_head_that_does_not_answer_is_asked_again_and_then_named(
    closed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(MxconvError, match=rf"no cluster at {closed} \(nobody answers at {closed}: .*\); a running one"),
        cluster(closed, 1),
    ):
        pass
    assert f"no cluster at {closed} yet; trying again" in capfd.readouterr().err


def test_what_an_earlier_head_noted_is_named_when_it_is_gone(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(closed)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)  # one runs here: the tests' own
    port = closed.rpartition(":")[2]
    with (
        pytest.raises(MxconvError, match=rf"no cluster at auto \(nobody answers at [\d.]+:{port}:"),
        cluster("auto", 1),
    ):
        pass


class Refused:
    """In place of Ray that is asked for a token, as 2.60 says it."""

    __version__ = "0"

    def init(self, **options: object) -> None:
        try:
            raise RuntimeError("Failed to connect to GCS. ... ray.exceptions.AuthenticationError: RPC error")
        except RuntimeError as error:
            raise ConnectionError("Failed to connect to Ray cluster") from error

    def shutdown(self) -> None: ...


def test_a_cluster_that_asks_for_a_token_is_not_asked_again() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as inputs,
        pytest.raises(MxconvError, match=r"answers only whoever knows its token; .* Copy ~/.ray/auth_token"),
    ):
        _connect(Refused(), f"127.0.0.1:{inputs.getsockname()[1]}", {})
