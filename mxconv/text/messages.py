"""The messages of a conversation, as chat templates see them, and files of prompts, JSON lines."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

from mxconv.arch.fields import quote
from mxconv.checkpoint.regular_file import check_regular_file, open_file, parse_json_object
from mxconv.errors import ModelError

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]
"""A text, or the messages of a chat: {"role": ..., "content": ...} each."""

REASONING = ("reasoning_content", "thinking", "reasoning")  # by who wrote the template
MAX_DEPTH = 32  # of lists and objects within each other


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of messages, of JSON alone: a template comes from anybody, and gets no objects with methods of their own.

    As in transformers, what an assistant thought has all of its names (`REASONING`), and members that are null are left
    out.

    Args:
        messages: each has a `role` and `content`: text, or a list of parts. Where there are `tool_calls`, or where an
            assistant only thought, content may be null or missing.

    Raises:
        ModelError: there is none, or one is malformed.
    """
    if not messages:
        raise ModelError("messages: 0; at least one is required. Add one of the user.")
    return [_plain_message(message, f"message {number}") for number, message in enumerate(messages, 1)]


def num_chat_prompts(prompts: Iterable[Prompt]) -> int:
    """The number of prompts that are messages, and so are put into a chat template."""
    return sum(not isinstance(prompt, str) for prompt in prompts)


def plain_json(value: Any, name: str, depth: int = 0) -> Any:
    """A copy of a value that JSON can say.

    Raises:
        ModelError: it holds something else, or is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise ModelError(f"{name}: nested more than {MAX_DEPTH} deep; less is required. Flatten it.")
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping) and all(type(key) is str for key in value):
        return {key: plain_json(each, name, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(each, name, depth + 1) for each in value]
    raise ModelError(f"{name}: holds a {type(value).__name__}; what JSON can say is required. Convert it.")


def alternatives(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield messages as they are, and then in other forms of the same, for templates that refuse some forms.

    With as few changes as possible: one at a time, then two, and so on.
    """
    tried: list[list[dict[str, Any]]] = []
    for size in range(len(CHANGES) + 1):
        for changes in combinations(CHANGES, size):
            changed = messages
            for change in changes:
                changed = change(changed)
            if changed not in tried:
                tried.append(changed)
                yield changed


def _with_system_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All system messages as one before the others."""
    systems = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    return [*_joined(systems), *others]


def _with_system_in_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """System messages as the beginning of the user's, where there is a user."""
    if not any(each["role"] == "user" for each in messages):
        return messages
    return _with_turns_joined([{**each, "role": "user"} if each["role"] == "system" else each for each in messages])


def _with_turns_joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turns that follow one of the same role as one with it; calls and what they gave stay alone."""
    found = []
    for role, turns in groupby(messages, lambda each: "tool" if each.get("tool_calls") else each["role"]):
        same = list(turns)
        found += same if role == "tool" else _joined(same)
    return found


def _joined(turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One turn of several, with an empty line between their texts."""
    if len(turns) < 2 or not all(isinstance(turn.get("content"), str) for turn in turns):
        return turns
    return [{**turns[0], "content": "\n\n".join(turn["content"] for turn in turns)}]


def _with_text_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arguments of calls as JSON texts."""

    def written(function: dict[str, Any]) -> dict[str, Any]:
        arguments = function.get("arguments")
        is_text = isinstance(arguments, str)
        return {**function, "arguments": arguments if is_text else json.dumps(arguments, ensure_ascii=False)}

    return _with_calls(messages, lambda call: {**call, "function": written(call.get("function", {}))})


def _with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ids of calls as nine letters and digits, which Mistral's templates demand."""

    def short(value: Any) -> str:
        return hashlib.sha256(str(value).encode()).hexdigest()[:9]

    shortened = _with_calls(messages, lambda call: {**call, "id": short(call.get("id"))})
    return [
        {**each, "tool_call_id": short(each["tool_call_id"])} if each.get("tool_call_id") else each
        for each in shortened
    ]


def _with_calls(
    messages: list[dict[str, Any]], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    return [
        {**each, "tool_calls": [change(call) for call in each["tool_calls"]]} if each.get("tool_calls") else each
        for each in messages
    ]


CHANGES = (_with_system_first, _with_text_arguments, _with_short_ids, _with_turns_joined, _with_system_in_user)


def _plain_message(message: Message, name: str) -> dict[str, Any]:
    lacking = "role"
    if isinstance(message, Mapping) and isinstance(message.get("role"), str):
        content = message.get("content")
        may_be_empty = any(message.get(key) is not None for key in ("tool_calls", *REASONING))
        is_parts = isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content)
        lacking = "" if isinstance(content, str) or is_parts or (content is None and may_be_empty) else "content"
    if lacking:
        raise ModelError(f"{name}: {quote(message)}; a {lacking} that is text is required. Add it.")
    # as in transformers: templates handle a member that is missing, and many write `None` for one that is null
    plain: dict[str, Any] = plain_json({key: value for key, value in message.items() if value is not None}, name)
    reasoning = next((plain[key] for key in REASONING if plain.get(key) is not None), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


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
