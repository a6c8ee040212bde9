"""`--chat`, `--system` and lines of messages, wherever prompts come from a file: the ids that transformers has."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_servers import chat_package
from transformers import AutoTokenizer

from mxconv.package.manifest import read_manifest
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Request

SYSTEM = {"role": "system", "content": "Be kind"}
TURNS = [{"role": "user", "content": "os"}, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "sys"}]
LINES = ({"prompt": "json"}, {"messages": TURNS}, {"messages": [SYSTEM, *TURNS], "prompt": "re"})
ANSWER = ("--max-new-tokens", 4, "--json")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_package(tmp_path_factory.mktemp("chat-prompts"))


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
