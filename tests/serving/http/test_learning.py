"""`--learn` in a server: answers stay those of a server without it, requests come first, and failures end nothing."""

import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import run_forked
from http_servers import Running, chat_package, running, serve, wait_for
from prometheus_client.parser import text_string_to_metric_families

from mxconv.serving.learner import Learner

pytest.importorskip("torch", reason="the extra train is not installed")
PATH = "/v1/completions"
PROMPTS = ("import os\n\ndef ", "class Stack:\n    def push(self, item):\n", "try:\n    import zlib\nexcept ")
SECONDS = 60


@pytest.fixture(scope="module")
def own_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A package beside which there is room for what is learned."""
    return chat_package(tmp_path_factory.mktemp("learning"))


@pytest.fixture
def learning(own_package: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr("mxconv.train.online_speculator.NEW_LEARNING_RATE", 5e-3)  # few texts, which come again
    options: Any = {"num_draft_tokens": [3], "confidence": [0.0], "tree": "chain"}
    with running(own_package, levels=["target"], decoding=options, learns=True) as server:
        yield server


def learner_in(server: Running) -> Learner:
    (engine,) = server.serving.desk.thread.engines
    assert engine.learner is not None
    return engine.learner


def bodies() -> list[dict[str, Any]]:
    """Of every prompt a greedy answer and a drawn one."""
    common = {"max_tokens": 32, "logprobs": 2, "mxconv": {"trace": True}}
    return [{"prompt": text, "temperature": each, "seed": 3, **common} for text in PROMPTS for each in (0, 0.9)]


def answer(server: Running, body: dict[str, Any]) -> tuple[Any, ...]:
    """Text, token ids, logprobs and ending."""
    choice = server.post(PATH, body).json()["choices"][0]
    ids = [token["id"] for token in choice["mxconv"]["tokens"]]
    return choice["text"], ids, choice["logprobs"], choice["finish_reason"]


def counts_of(url: str) -> dict[str, float]:
    """What /metrics says of learning: steps, and tokens as `weights outcome`."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(httpx.get(url + "/metrics").text):
        for sample in family.samples:
            if family.name == "mxconv_learning_steps":
                found["steps"] = sample.value
            elif family.name == "mxconv_learning_tokens":
                found[f"{sample.labels['weights']} {sample.labels['outcome']}"] = sample.value
    return found


def test_answers_are_those_of_a_server_that_does_not_learn_and_more_is_accepted(
    own_package: Path, learning: Running
) -> None:
    with running(own_package, levels=["target"]) as plain:
        expected = [answer(plain, body) for body in bodies()]
        assert counts_of(plain.url) == {}
    assert [answer(learning, body) for body in bodies()] == expected
    learner = learner_in(learning)
    for _ in range(4):
        wait_for(lambda: not learner.is_behind)
        assert [answer(learning, body) for body in bodies()] == expected
    counts = counts_of(learning.url)
    assert counts["steps"] > 0
    before, after = (counts[f"{weights} accepted"] / counts[f"{weights} proposed"] for weights in ("loaded", "learned"))
    assert after > max(1.15 * before, 0.2)


def test_a_request_waits_for_no_more_than_a_step(learning: Running) -> None:
    learner: Any = learner_in(learning)
    answer(learning, bodies()[0])
    learner._num_due = 10**9  # days of work
    wait_for(lambda: learner.num_steps > 1)
    for body in bodies():
        assert answer(learning, body)[-1] == "length"
    assert learner.is_behind


def test_where_learning_fails_serving_goes_on(learning: Running, caplog: pytest.LogCaptureFixture) -> None:
    learner: Any = learner_in(learning)

    def full() -> None:
        raise OSError(28, "No space left on device")

    learner.learn = full
    expected = [answer(learning, body) for body in bodies()]
    with caplog.at_level(logging.ERROR, "mxconv.serving"):
        wait_for(lambda: "learned learns no more" in caplog.text)
    assert "No space left on device" in caplog.text
    assert [answer(learning, body) for body in bodies()] == expected
    assert learning.get("/health").status_code == 200 and learner.num_steps == 0


def test_the_command_saves_when_it_is_told_to_stop_and_loads_when_it_starts(tmp_path: Path) -> None:
    package = chat_package(tmp_path)
    weights = tmp_path / "pylib.learned" / "model.safetensors"
    written = []
    for _ in range(2):
        with serve(package, "--learn", "--levels", "target") as (process, line):
            url = line.split()[-1]
            httpx.post(url + PATH, json={"prompt": PROMPTS[0], "max_tokens": 64, "temperature": 0}, timeout=SECONDS)
            wait_for(lambda url=url: counts_of(url)["steps"] > 0)
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS) == 0
            assert process.communicate() == ("", "")
        written.append(weights.read_bytes())
    assert written[0] != written[1] and len(written[0]) == len(written[1])


def test_a_package_elsewhere_is_refused_and_without_the_extra_it_says_what_to_install(
    own_package: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, mxconv.cli.main; sys.modules['torch'] = None\n"
        "sys.argv = ['mxconv', 'serve', sys.argv[1], '--learn']; mxconv.cli.main.main()"
    )
    words = [sys.executable, "-c", code, str(own_package)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 1
    assert "torch is not installed" in done.stderr and "pip install '.[train]'" in done.stderr
    assert run_forked(("serve", "--help"), {}, tmp_path).stdout.count("--learn") == 1
