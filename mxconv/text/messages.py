"""The messages of a conversation, as chat templates see them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mxconv.arch.fields import quote
from mxconv.errors import ModelError

Message = Mapping[str, Any]
Prompt = str | Sequence[Message]
"""A text, or the messages of a chat: {"role": ..., "content": ...} each."""

REASONING = ("reasoning_content", "thinking", "reasoning")  # by who wrote the template
MAX_DEPTH = 32  # of lists and objects within each other


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of messages, of JSON alone: a template comes from anybody, and gets no objects with methods of their own.

    What an assistant thought has all of its names (`REASONING`), as in transformers.

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
    """How many of some prompts are messages, and so are put into a chat template."""
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


def _plain_message(message: Message, name: str) -> dict[str, Any]:
    lacking = "role"
    if isinstance(message, Mapping) and isinstance(message.get("role"), str):
        content = message.get("content")
        may_be_empty = any(message.get(key) is not None for key in ("tool_calls", *REASONING))
        is_parts = isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content)
        lacking = "" if isinstance(content, str) or is_parts or (content is None and may_be_empty) else "content"
    if lacking:
        raise ModelError(f"{name}: {quote(message)}; a {lacking} that is text is required. Add it.")
    plain: dict[str, Any] = plain_json(message, name)
    reasoning = next((plain[key] for key in REASONING if plain.get(key) is not None), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}
