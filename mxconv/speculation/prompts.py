"""Prompt files: JSON lines with a `prompt`, `messages` or `turns` each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mxconv.arch.fields import quote
from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object
from mxconv.errors import ModelError
from mxconv.text.messages import Message, Prompt, plain_messages

MAX_FILE_BYTES = 1_000_000_000


def read_prompts(path: Path, chat: bool = False, system: str | None = None) -> list[Prompt]:
    """The prompts of a .jsonl file, in order; other keys are ignored, blank lines skipped.

    A line's `prompt` is a text, its `messages` are a chat. A line with both is its messages where `chat` is asked for,
    and its prompt otherwise; `messages` alone are always put into the chat template. `turns`, as MT-Bench has them,
    are a user's texts, of which the first is the prompt: the others need its answer.

    Args:
        path: of the file.
        chat: make every prompt a message of the user, for the model's chat template.
        system: the text of a system message before each chat that does not begin with one.

    Raises:
        MxconvError: the file cannot be read, a line is no JSON object, has none of the three keys or one that is
            malformed, or there is no line.
    """
    if (num_bytes := check_regular_file(path)) > MAX_FILE_BYTES:
        raise ModelError(f"{path}: {num_bytes:,} bytes; at most {MAX_FILE_BYTES:,} are read. Split the file.")
    prompts = []
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            name = f"{path}: line {number}"
            prompt = _prompt_of(parse_json_object(line, name, unique_keys=False), chat, name)
            prompts.append(as_chat(prompt, system) if chat else prompt)
    if not prompts:
        raise ModelError(
            f"{path}: holds no prompts; at least one line with a `prompt`, `messages` or `turns` is required."
        )
    return prompts


def given_prompts(
    path: Path | None, texts: Sequence[str], chat: bool = False, system: str | None = None
) -> list[Prompt]:
    """The prompts of a file as `read_prompts` has them, or where none is given those of some texts."""
    if path is not None:
        return read_prompts(path, chat, system)
    return [as_chat(text, system) if chat else text for text in texts]


def as_chat(prompt: Prompt, system: str | None = None) -> list[Message]:
    """The messages of a chat: a text is the user's, and the system's come before it unless the chat has its own."""
    messages: list[Message] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    has_own = messages[0].get("role") in ("system", "developer")
    return messages if system is None or has_own else [{"role": "system", "content": system}, *messages]


def text_of(prompt: Prompt) -> str:
    """What a reader is shown of a prompt: a text, or of messages the last one's."""
    if isinstance(prompt, str):
        return prompt
    content = prompt[-1].get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def _prompt_of(members: Mapping[str, Any], chat: bool, name: str) -> Prompt:
    """The prompt of one line, all of whose keys are checked."""
    found: dict[str, Prompt] = {}
    if "prompt" in members:
        found["prompt"] = _text(members["prompt"], f"{name}: prompt")
    if "messages" in members:
        found["messages"] = messages = members["messages"]
        if not isinstance(messages, list):
            required = "a list of objects with role and content is required"
            raise ModelError(f"{name}: messages is {quote(messages)}; {required}.")
        try:
            plain_messages(messages)
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from error
    if "turns" in members:
        turns = members["turns"]
        if not isinstance(turns, list) or not turns:
            raise ModelError(f"{name}: turns is {quote(turns)}; a list of texts is required.")
        found["turns"] = _text(turns[0], f"{name}: turn 1")
    for key in ("messages", "prompt", "turns") if chat else ("prompt", "turns", "messages"):
        if key in found:
            return found[key]
    raise ModelError(f"{name}: no `prompt`, `messages` or `turns` in it; one of them is required. Add it.")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ModelError(f"{name} is {quote(value)}; some text is required.")
    return value
