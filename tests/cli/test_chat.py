"""`mxconv chat`: several turns, commands, and Ctrl-C that ends a reply and not the program."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from http_servers import chat_package

from mxconv.cli.chat_command import _reply, run_command
from mxconv.cli.output import Output
from mxconv.decode import load
from mxconv.errors import MxconvError
from mxconv.serving.conversation import Conversation
from mxconv.text.constraint import Constraint

COMMAND = [sys.executable, "-m", "mxconv.cli.main", "chat"]


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_package(tmp_path_factory.mktemp("chat"))


def test_turns_are_what_generate_writes_behind_the_same_messages(talkative: Path) -> None:
    with load(talkative, num_threads=1) as model:
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


def test_a_reply_that_is_ended_early_stays_as_far_as_it_came(talkative: Path) -> None:
    with load(talkative, num_threads=1) as model:
        conversation = Conversation(model, {"max_new_tokens": 50})
        pieces = conversation.say("Which module?")
        said = "".join(next(pieces).text for _ in range(5))
        pieces.close()
        assert conversation.turns[-1] == {"role": "assistant", "content": said}
        assert conversation.totals.num_tokens == 5
        assert "".join(piece.text for piece in conversation.say("More?"))


def test_lines_from_a_pipe_are_turns_and_commands(
    run: Any, talkative: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["/system Be brief.", "Which module?", "/nothing", "/stats", *["/save saved.json"] * 2, "/quit", "x"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    done = run("chat", talkative, "--max-new-tokens", 20, "--threads", 1, "--kv-dtype", "bf16")
    assert done.exit_code == 0, done.stderr
    saved = json.loads((tmp_path / "saved.json").read_text())["messages"]
    assert [message["role"] for message in saved] == ["system", "user", "assistant"]
    assert saved[2]["content"] in done.stdout
    for said in ("target <- mxfp4 <- prompt-lookup", "/nothing: no command", "tokens in", "saved.json: exists"):
        assert said in done.stdout, said


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_ctrl_c_ends_a_reply_and_not_the_program(talkative: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, str(talkative), "--max-new-tokens", "480", "--temperature", "1.5", "--threads", "1"],
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


def test_commands_that_cannot_be_done_are_told(talkative: Path, tmp_path: Path) -> None:
    with load(talkative, num_threads=1) as model:
        conversation = Conversation(model, {})
        for line, message in (
            ("/save", "0 files"),
            (f"/save {tmp_path}/none/x", "its folder .* does not exist; it must"),
            ("/x", "no command"),
        ):
            with pytest.raises(MxconvError, match=message):
                run_command(line, conversation, Output(json_output=False))


def test_a_turn_that_cannot_be_is_taken_back(talkative: Path) -> None:
    with load(talkative, num_threads=1) as model:
        conversation = Conversation(model, {"max_new_tokens": 4})
        with pytest.raises(MxconvError, match="positions"):
            list(conversation.say("x " * 600))
        assert conversation.messages == []
