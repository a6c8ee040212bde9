"""`mxconv chat`, and chat templates wherever prompts come from a file: the ids that transformers has."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_servers import chat_package
from transformers import AutoTokenizer

from mxconv.cli.chat_command import _reply, run_command
from mxconv.cli.output import Output
from mxconv.decode import load
from mxconv.errors import MxconvError
from mxconv.package.manifest import read_manifest
from mxconv.serving.conversation import Conversation
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Request
from mxconv.text.constraint import Constraint

COMMAND = [sys.executable, "-m", "mxconv.cli.main", "chat"]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_package(tmp_path_factory.mktemp("chat"))


def test_turns_are_what_generate_writes_behind_the_same_messages(package: Path) -> None:
    with load(package, num_threads=1) as model:
        conversation = Conversation(model, {"max_new_tokens": 30, "temperature": 0.7, "seed": 5}, "Be brief.")
        for question in ("Which module?", "And then?"):
            said = "".join(piece.text for piece in conversation.say(question))
            *messages, answer = conversation.messages
            expected = model.generate(messages, max_new_tokens=30, temperature=0.7, seed=5)
            assert answer == {"role": "assistant", "content": said} and said == expected.text
        totals = conversation.totals
        assert totals.num_tokens == sum(level.num_guessed for level in totals.levels)
        assert 0 < totals.num_rounds <= totals.num_tokens
        for level in totals.levels[1:]:
            assert 0 <= level.num_accepted <= level.num_proposed


def test_thoughts_are_apart_from_the_reply_and_grey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = chat_package(tmp_path, template="{{ messages[-1].content }}<think>{# </think> #}")
    with load(package, num_threads=1) as model:
        conversation = Conversation(model, {"max_new_tokens": 30, "constraint": Constraint("regex", "hm</think>ok")})
        pieces = list(conversation.say("x"))
        assert "".join(piece.text for piece in pieces if piece.is_thought) == "hm"
        assert "".join(piece.text for piece in pieces if not piece.is_thought) == "ok"
        assert conversation.turns[-1] == {"role": "assistant", "content": "ok", "reasoning_content": "hm"}
        _reply(conversation, "y", Output(json_output=False))
        assert "hm\n\nok" in capsys.readouterr().out
        cut = Conversation(model, {"max_new_tokens": 3})
        assert {piece.is_thought for piece in cut.say("x") if piece.text} == {True}


def test_a_reply_that_is_ended_early_stays_as_far_as_it_came(package: Path) -> None:
    with load(package, num_threads=1) as model:
        conversation = Conversation(model, {"max_new_tokens": 50})
        pieces = conversation.say("Which module?")
        said = "".join(next(pieces).text for _ in range(5))
        pieces.close()
        assert conversation.turns[-1] == {"role": "assistant", "content": said}
        assert conversation.totals.num_tokens == 5
        assert "".join(piece.text for piece in conversation.say("More?"))


def test_lines_from_a_pipe_are_turns_and_commands(
    run: Any, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["/system Be brief.", "Which module?", "/nothing", "/stats", *["/save saved.json"] * 2, "/quit", "x"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    done = run("chat", package, "--max-new-tokens", 20, "--threads", 1, "--kv-dtype", "bf16")
    assert done.exit_code == 0, done.stderr
    saved = json.loads((tmp_path / "saved.json").read_text())["messages"]
    assert [message["role"] for message in saved] == ["system", "user", "assistant"]
    assert saved[2]["content"] in done.stdout
    for said in ("target <- mxfp4 <- prompt-lookup", "/nothing: no command", "tokens in", "saved.json: exists"):
        assert said in done.stdout, said


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_ctrl_c_ends_a_reply_and_not_the_program(package: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(package), "--max-new-tokens", "480", "--temperature", "1.5", "--threads", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdin is not None and process.stdout is not None
    assert b"target <- mxfp4" in process.stdout.readline()
    assert b"sampling: temperature 1.5 (request)" in process.stdout.readline()
    process.stdin.write(b"Which module?\n")
    process.stdin.flush()
    process.stdout.read(1)  # the reply has begun
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    out, err = process.communicate(b"/stats\n/quit\n", timeout=60)
    assert process.returncode == 0, err
    assert b"(ended)" in out and b"tokens in" in out


def test_commands_that_cannot_be_done_are_told(package: Path, tmp_path: Path) -> None:
    with load(package, num_threads=1) as model:
        conversation = Conversation(model, {})
        for line, message in (
            ("/save", "0 files"),
            (f"/save {tmp_path}/none/x", "its folder .* does not exist; it must"),
            ("/x", "no command"),
        ):
            with pytest.raises(MxconvError, match=message):
                run_command(line, conversation, Output(json_output=False))


def test_a_turn_that_cannot_be_is_taken_back(package: Path) -> None:
    with load(package, num_threads=1) as model:
        conversation = Conversation(model, {"max_new_tokens": 4})
        with pytest.raises(MxconvError, match="positions"):
            list(conversation.say("x " * 600))
        assert conversation.messages == []


SYSTEM = {"role": "system", "content": "Be kind"}
TURNS = [{"role": "user", "content": "os"}, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "sys"}]
LINES = ({"prompt": "json"}, {"messages": TURNS}, {"messages": [SYSTEM, *TURNS], "prompt": "re"})
ANSWER = ("--max-new-tokens", 4, "--json")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Ids of every prompt that is decoded, each once, in order."""
    found: list[list[int]] = []
    stream, submit = Hierarchy.stream, Engine.submit

    def keep(prompt: list[int]) -> None:
        if prompt not in found:
            found.append(prompt)

    def seen_stream(self: Hierarchy, request: Request, *arguments: Any) -> Iterator[Any]:
        keep(list(request.prompt))
        return stream(self, request, *arguments)

    def seen_submit(self: Engine, request: Request, *arguments: Any) -> Any:
        keep(list(request.prompt))
        return submit(self, request, *arguments)

    monkeypatch.setattr(Hierarchy, "stream", seen_stream)
    monkeypatch.setattr(Engine, "submit", seen_submit)
    return found


def ids_of(package: Path, *prompts: Any) -> list[list[int]]:
    """As transformers has them."""
    tokenizer = AutoTokenizer.from_pretrained(package)
    return [
        tokenizer(each)["input_ids"]
        if isinstance(each, str)
        else tokenizer.apply_chat_template(each, add_generation_prompt=True, tokenize=True, return_dict=False)
        for each in prompts
    ]


JSON = [{"role": "user", "content": "json"}]
CHATS = [SYSTEM, *JSON], [SYSTEM, *TURNS]  # the third line's are those of the second with its own system message


@pytest.mark.parametrize(
    ("command", "more"),
    [
        (("generate", "PACKAGE", "--prompts"), ()),
        (("verify", "PACKAGE", "--decode"), ("--batch", 2)),
        (("bench", "decode", "PACKAGE", "--num-tokens", "1", "--prompts"), ()),
    ],
    ids=["generate", "verify", "bench decode"],
)
def test_prompts_are_put_into_the_template(
    run: Any, package: Path, prompts: Path, decoded: list[list[int]], command: tuple[str, ...], more: tuple[Any, ...]
) -> None:
    words = [package if word == "PACKAGE" else word for word in command]
    raw = ("--raw",) if command[0] == "generate" else ()  # which else takes the template that is there
    without = run(*words, prompts, *raw, *more, *ANSWER)
    assert without.exit_code == 0, without.stderr
    assert decoded == ids_of(package, "json", TURNS, "re")
    decoded.clear()
    outcome = run(*words, prompts, "--chat", "--system", "Be kind", *more, *ANSWER)
    assert outcome.exit_code == 0, outcome.stderr
    assert decoded == ids_of(package, *CHATS)
    if command[0] == "generate":
        assert [each["prompt"] for each in outcome.json["results"]] == ["json", "sys", "sys"]
        assert [each.get("messages") for each in without.json["results"]] == [None, TURNS, None]
    elif command[0] == "bench":
        assert (without.json["num_chat_prompts"], outcome.json["num_chat_prompts"]) == (1, 3)


def test_the_certificate_says_which_prompts_were_in_the_template(run: Any, package: Path, prompts: Path) -> None:
    command = ("verify", package, "--decode", prompts, "--max-new-tokens", 4, "--write")
    some = run(*command)
    assert "3 prompts (1 of them in the chat template) decoded by target" in some.stdout
    certificate = read_manifest(package).certificate
    assert certificate is not None and certificate.decode is not None
    assert (certificate.decode.num_chat_prompts, certificate.decode.system) == (1, None)
    assert "3 prompts (in the chat template) decoded by" in run(*command, "--chat", "--system", "Be kind").stdout
    certificate = read_manifest(package).certificate
    assert certificate is not None and certificate.decode is not None
    assert (certificate.decode.num_chat_prompts, certificate.decode.system) == (3, "Be kind")


def test_what_cannot_be_put_into_a_template_is_named(run: Any, package: Path, prompts: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n\n{"messages": [{"role": "user"}]}\n')
    for command in (("verify", package, "--decode"), ("bench", "decode", package, "--prompts")):
        refused = run(*command, tmp_path / "bad.jsonl", "--chat")
        assert refused.exit_code == 1
        assert 'bad.jsonl: line 3: message 1: {"role": "user"}; a content that is text is required' in refused.stderr
        usage = run(*command, prompts, "--system", "Be kind")
        assert usage.exit_code == 2 and "--system needs --chat" in usage.stderr
    assert "--chat needs --decode" in run("verify", package, "--chat").stderr
    (package.parent / "source" / "chat_template.jinja").write_text("{{ raise_exception('no more than one turn') }}")
    assert run("quantize", package.parent / "source", "-o", tmp_path / "strict").exit_code == 0
    refused = run("verify", tmp_path / "strict", "--decode", prompts)
    assert refused.exit_code == 1 and "prompt 2: " in refused.stderr and "no more than one turn" in refused.stderr
