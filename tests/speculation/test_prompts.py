"""Prompt files, and every line that is refused."""

import json
import os
from pathlib import Path

import pytest

from mxconv.errors import MxconvError
from mxconv.text import messages as prompts_module
from mxconv.text.messages import read_prompts


def write(folder: Path, content: bytes) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(content)
    return path


def test_prompts_come_in_order_other_keys_are_ignored_and_blank_lines_skipped(tmp_path: Path) -> None:
    content = '{"prompt": "Once"}\n\n  \n{"id": 7, "prompt": "h\\u00e9 \\"x\\" ü\\n", "text": 1}\r\n{"prompt": "last"}'
    assert read_prompts(write(tmp_path, content.encode())) == ["Once", 'hé "x" ü\n', "last"]


USER = {"role": "user", "content": "Hi"}
OWN = [{"role": "system", "content": "Be rude"}, USER]


def test_a_line_may_hold_messages_or_the_turns_of_a_benchmark(tmp_path: Path) -> None:
    lines = [{"prompt": "a"}, {"messages": [USER]}, {"turns": ["b", "c"]}, {"messages": OWN, "prompt": "d"}]
    path = write(tmp_path, "\n".join(map(json.dumps, lines)).encode())
    assert read_prompts(path) == ["a", [USER], "b", "d"]
    assert read_prompts(path, chat=True) == [
        [{"role": "user", "content": "a"}],
        [USER],
        [{"role": "user", "content": "b"}],
        OWN,
    ]
    system = {"role": "system", "content": "Be kind"}
    assert read_prompts(path, chat=True, system="Be kind") == [
        [system, {"role": "user", "content": "a"}],
        [system, USER],
        [system, {"role": "user", "content": "b"}],
        OWN,
    ]


REFUSED = {
    "an empty file": (
        b"",
        r"prompts\.jsonl: holds no prompts; at least one line with a `prompt`, `messages` or `turns` is req",
    ),
    "no JSON": (
        b'{"prompt": "a"}\nOnce upon\n',
        r"prompts\.jsonl: line 2: no valid JSON in UTF-8 .*; a JSON object",
    ),
    "no object": (b'["prompt"]\n', r"line 1: a JSON list is at the top; a JSON object is required\."),
    "no prompt": (
        b'{"text": "a"}\n',
        r"line 1: no `prompt`, `messages` or `turns` in it; one of them is required\. Add it\.$",
    ),
    "no text": (b'\n{"prompt": 3}\n', r"line 2: prompt is 3; some text is required\.$"),
    "empty text": (b'{"prompt": ""}\n', 'line 1: prompt is ""; some text is required'),
    "messages that are no list": (
        b'{"messages": "Hi"}\n',
        r'line 1: messages is "Hi"; a list of objects with role and c',
    ),
    "no messages": (b'{"prompt": "a", "messages": []}\n', r"line 1: messages: 0; at least one is required"),
    "a message without a role": (
        b'\n{"messages": [{"role": "user", "content": "a"}, {"content": "b"}]}\n',
        r'line 2: message 2: \{"content": "b"\}; a role that is text is required',
    ),
    "turns that are a text": (b'{"turns": "a"}\n', 'line 1: turns is "a"; a list of texts is required'),
    "no turns": (b'{"turns": []}\n', r"line 1: turns is \[\]; a list of texts is required"),
    "a turn that is no text": (b'{"turns": [["a"]]}\n', r'line 1: turn 1 is \["a"\]; some text is required'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, case: str) -> None:
    content, message = REFUSED[case]
    with pytest.raises(MxconvError, match=message):
        read_prompts(write(tmp_path, content))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match=r"nothing\.jsonl: no such file; a readable file is required"):
        read_prompts(tmp_path / "nothing.jsonl")
    with pytest.raises(MxconvError, match="is a folder; a regular file is required"):
        read_prompts(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(MxconvError, match="pipe: is no regular file"):
        read_prompts(tmp_path / "pipe")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, b'{"prompt": "Once"}\n')
    monkeypatch.setattr(prompts_module, "MAX_FILE_BYTES", 18)
    with pytest.raises(MxconvError, match=r"prompts\.jsonl: 19 bytes; at most 18 are read\. Split the file\.$"):
        read_prompts(path)
