"""Several models in one server: each answers as it does alone, in turns, within one budget of caches."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from commands import run_forked
from http_servers import NAME, Running, events_of, running, wait_for
from packages import quantize
from trained_levels import TRAINED

from mxconv.decode import load
from mxconv.engine import placement
from mxconv.errors import ModelError
from mxconv.kernels.engine import native_names
from mxconv.serving.joint_passes import divided
from mxconv.serving.llm_engine import Engine

PATH = "/v1/completions"
LARGER = "larger"
TEXTS = ("import os\n\ndef ", "class Stack:\n    def push(self, item):\n", "try:\n    import zlib\nexcept ")


@pytest.fixture(scope="module")
def both(package: Path, plain_package: Path) -> Iterator[Running]:
    with running(package, others={LARGER: plain_package}) as found:
        yield found
        found.wait_until_idle()


def bodies() -> list[dict[str, Any]]:
    """Twelve requests: of both models, greedy and drawn, in one piece and in chunks, with and without the prompt."""
    return [
        {"model": (NAME, LARGER)[i % 2], "prompt": TEXTS[i % 3] * (1 + i % 4), "max_tokens": 40, "seed": i}
        | {"temperature": (0, 1.1)[i // 2 % 2], "stream": i // 4 % 2 == 1, "logprobs": 2, "echo": i > 9}
        | {"mxconv": {"trace": True}}
        for i in range(12)
    ]


def answer(server: Running, body: dict[str, Any]) -> dict[str, Any]:
    """Model, text, token ids and logprobs; of a stream all chunks together."""
    with httpx.stream("POST", server.url + PATH, json=body, timeout=60) as response:
        if body["stream"]:
            *chunks, end = events_of(response)
            assert end == "[DONE]"
        else:
            response.read()
            chunks = [response.json()]
    assert response.status_code == 200, chunks
    pieces = [chunk["choices"][0] for chunk in chunks]
    entries = [piece["logprobs"] for piece in pieces]
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {
        "model": {chunk["model"] for chunk in chunks},
        "text": "".join(piece["text"] for piece in pieces),
        "ids": [token["id"] for piece in pieces if "mxconv" in piece for token in piece["mxconv"]["tokens"]],
        "logprobs": [[one for entry in entries for one in entry[name]] for name in names],
        "ending": pieces[-1]["finish_reason"],
    }


def pool_bytes(engine: Engine) -> int:
    """Bytes of all pages that an engine's pools have, in use or not."""
    return sum(pool.pages.num_pages * pool.page_bytes for pool in engine._budget._pools.values())


def test_every_answer_is_that_of_the_model_alone_in_turns_and_within_the_budget(
    package: Path, plain_package: Path
) -> None:
    alone: dict[str, list[dict[str, Any]]] = {}
    for name, path in ((NAME, package), (LARGER, plain_package)):
        with running(path) as server:
            mine = [{**body, "model": NAME} for body in bodies() if body["model"] == name]
            alone[name] = [{**answer(server, body), "model": {name}} for body in mine]
    most = _least_bytes(package, plain_package) * 3  # of each model two or three sequences, of six that are wanted
    taken, steps = [], []
    with running(package, others={LARGER: plain_package}, kv_bytes=most) as server:
        engines = list(server.serving.admission.thread.engines)

        def watch(engine: Engine) -> None:
            step = engine.step

            def watched() -> Any:
                steps.append((engine, all(not each.is_idle for each in engines)))
                decided = step()
                taken.append([pool_bytes(each) for each in engines])
                return decided

            engine.step = watched  # type: ignore[method-assign]

        for engine in engines:
            watch(engine)
        server.gate.clear()
        with ThreadPoolExecutor(12) as pool:
            waiting = [pool.submit(answer, server, body) for body in bodies()]
            wait_for(lambda: server.serving.admission.num_open == 12)
            server.gate.set()
            together = [one.result() for one in waiting]
    assert together == [one for pair in zip(alone[NAME], alone[LARGER], strict=True) for one in pair]
    assert {len(one["ids"]) for one in together} == {40}
    assert most / 2 < max(map(sum, taken)) <= most
    shares = [engine._budget.num_bytes for engine in engines]
    assert all(used <= share for row in taken for used, share in zip(row, shares, strict=True) if share is not None)
    assert sum(busy for _, busy in steps) > 20
    assert all(second is not first for (first, _), (second, busy) in pairwise(steps) if busy)


def _least_bytes(*packages: Path) -> int:
    """Bytes that the shortest sequence of each takes, together."""
    found = 0
    for path in packages:
        with load(path, num_threads=1) as model:
            found += Engine(model.hierarchy({}))._budget.bytes_of(1)
    return found


def test_a_budget_is_divided_by_what_a_token_takes(package: Path, plain_package: Path) -> None:
    with load(package, num_threads=1) as small, load(plain_package, num_threads=1) as large:
        hierarchies = {NAME: small.hierarchy({}), LARGER: large.hierarchy({})}
        least = _least_bytes(package, plain_package)
        for num_bytes in (least, least + 1, 10 * least - 1, 10**9 + 7):
            shares = divided(num_bytes, hierarchies)
            budgets = [Engine(hierarchies[name], 16, share)._budget for name, share in shares.items()]
            longest = [max(n for n in range(0, 100_000, 64) if each.holds([n])) for each in budgets]
            assert sum(shares.values()) <= num_bytes and longest[0] == longest[1]
        assert shares[LARGER] > shares[NAME]
        with pytest.raises(ModelError, match=f"--kv-bytes {least - 1}: .* for '{NAME}'; .* Give at least {least:,}"):
            divided(least - 1, hierarchies)


def test_requests_choose_by_name_and_the_first_model_is_the_default(both: Running) -> None:
    client = both.client()
    listed = {model.id: model for model in client.models.list()}
    assert list(listed) == [NAME, LARGER]
    for name, entry in listed.items():
        found = client.models.retrieve(name)
        about = entry.model_dump()
        assert found == entry and about["max_model_len"] == about["mxconv"]["num_positions"]
        assert about["mxconv"]["levels"][0] == "target" and about["mxconv"]["can_chat"] is (name == NAME)
    answers = [both.post(PATH, {"prompt": "import ", "max_tokens": 2, "model": name}).json() for name in (None, LARGER)]
    assert [one["model"] for one in answers] == [NAME, LARGER]
    assert answers[0]["system_fingerprint"] != answers[1]["system_fingerprint"]
    with pytest.raises(openai.NotFoundError, match=f"'gpt/9' is not here; '{NAME}', '{LARGER}' are"):
        client.models.retrieve("gpt/9")
    chat = {"messages": [{"role": "user", "content": "Which?"}]}
    for path, body in (("/tokenize", chat), ("/v1/chat/completions", chat | {"max_tokens": 1})):
        assert both.post(path, body).status_code == 200
        refused = both.post(path, body | {"model": LARGER})
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "no_chat_template"


def test_one_models_load_takes_no_place_of_another(package: Path, plain_package: Path) -> None:
    with running(package, others={LARGER: plain_package}, max_sequences=1, max_queue=1) as server:
        server.gate.clear()
        with ThreadPoolExecutor() as pool:
            body = {"prompt": "import ", "max_tokens": 2}
            waiting = [pool.submit(server.post, PATH, body) for _ in range(2)]
            wait_for(lambda: server.serving.admission.num_open == 2)
            refused = server.post(PATH, body)
            waiting.append(pool.submit(server.post, PATH, body | {"model": LARGER}))
            wait_for(lambda: server.serving.admission.num_open == 3)
            full = server.post(PATH, body | {"model": LARGER})  # the queue is one for all
            server.gate.set()
            assert [one.result().status_code for one in waiting] == [200] * 3
        assert [one.json()["error"]["code"] for one in (refused, full)] == ["queue_full"] * 2


def test_a_second_package_that_is_broken_leaves_nothing_running(package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(package, broken)
    (broken / "mxconv.json").write_text("{")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    done = run_forked(("serve", str(package), str(broken), "--port", port, "--json"), os.environ, tmp_path)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith(f"mxconv: {broken}")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), timeout=5)


def test_drafts_that_are_named_hold_for_every_package(plain_package: Path, tmp_path: Path) -> None:
    quantize(TRAINED, tmp_path / "own", drafts=("streaming",))
    words = ("serve", str(tmp_path / "own"), str(plain_package), "--levels", "target,streaming", "--port", "0")
    done = run_forked(words, os.environ, tmp_path)
    assert done.returncode == 1 and str(plain_package) in done.stderr and "streaming" in done.stderr


@pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
def test_a_file_that_changes_under_one_model_leaves_the_other_serving(
    package: Path, plain_package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both read their target's planes as passes go; a certain text is as before, and errors name the file."""
    monkeypatch.setattr(placement, "num_that_fit", lambda *_: 0)
    mine = shutil.copytree(package, tmp_path / "mine")
    body = {"prompt": TEXTS[0], "max_tokens": 12, "temperature": 0}
    with running(package, others={LARGER: plain_package}) as ordinary:
        expected = [ordinary.post(PATH, body | {"model": name}).json()["choices"] for name in (NAME, LARGER)]
    with running(mine, others={LARGER: plain_package}, memory=10**12) as server:
        assert server.post(PATH, body).json()["choices"] == expected[0]
        os.truncate(mine / "model.safetensors", 4096)
        for _ in range(2):
            answer = server.post(PATH, body)
            assert answer.status_code in (400, 500)
            message = answer.json()["error"]["message"]
            assert message.startswith(f"{mine / 'model.safetensors'}: ") and "a file that passes read must" in message
            assert server.post(PATH, body | {"model": LARGER}).json()["choices"] == expected[1]


@pytest.mark.skipif(not native_names(), reason="the extension is not built on this machine")
def test_a_model_that_waits_for_its_disk_takes_no_turns_of_another(
    package: Path, plain_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests to it, also those that come and go meanwhile, are answered when the disk is back."""
    monkeypatch.setattr(placement, "num_that_fit", lambda *_: 0)
    body = {"prompt": TEXTS[0], "max_tokens": 12, "temperature": 0}
    with running(package, others={LARGER: plain_package}, memory=10**12) as server:
        engine, other = server.serving.admission.thread.engines
        teams = [each.hierarchy.levels[0].decoder.engine for each in (engine, other)]
        assert teams[0] is not teams[1]  # or a pass that waits would hold the other's threads
        expected = [server.post(PATH, body | {"model": name}).json()["choices"] for name in (NAME, LARGER)]
        waits, is_back, step = threading.Event(), threading.Event(), engine.step

        def slow() -> Any:
            waits.set()
            assert is_back.wait(60)
            return step()

        engine.step = slow  # type: ignore[method-assign]
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(server.post, PATH, body)
            assert waits.wait(60)
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(server.url + PATH, json=body, timeout=0.3)
            asked_later = pool.submit(server.post, PATH, body)
            for _ in range(3):
                assert server.post(PATH, body | {"model": LARGER}).json()["choices"] == expected[1]
            assert not asked.done() and not asked_later.done()
            is_back.set()
            assert [each.result().json()["choices"] for each in (asked, asked_later)] == [expected[0]] * 2
