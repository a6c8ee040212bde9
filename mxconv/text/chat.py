"""Chat templates: from messages to the text that a model was trained to answer."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mxconv.arch.fields import quote
from mxconv.checkpoint.tokenizer_settings import CONFIG_FILE, TokenizerSettings
from mxconv.errors import ModelError
from mxconv.text.chat_templates import TEMPLATE_FILE, read_templates
from mxconv.text.messages import Message, Prompt, alternatives, plain_json, plain_messages
from mxconv.text.template_sandbox import LimitError, render_template
from mxconv.text.thought_reader import MARKERS, ThoughtForm, thought_form
from mxconv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatPrompt:
    """A conversation as a model reads it: token ids, and the form of answers where it thinks before them."""

    token_ids: list[int]
    thought: ThoughtForm | None


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template."""

    source: str  # Jinja
    name: str  # what messages call it
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # texts by name: bos_token, eos_token and the like
    tool_source: str | None = None  # of a template for conversations with tools, where there is one

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate":
        """Read the default template, and the one for tools, from wherever `read_templates` finds them.

        Raises:
            ModelError: there is none, or it is too long or no text.
            CheckpointError: a file cannot be read.
        """
        templates, name = read_templates(folder)
        if not templates:
            raise ModelError(
                f"{folder}: there is no chat template; {TEMPLATE_FILE}, or chat_template in {CONFIG_FILE}, is "
                "required. Use an instruction-tuned model, or generate without --chat."
            )
        special_tokens = TokenizerSettings.read(folder).texts
        return cls(templates["default"], name, special_tokens, templates.get("tool_use"))

    def source_for(self, has_tools: bool) -> str:
        """The template of a conversation with tools or without."""
        return self.source if self.tool_source is None or not has_tools else self.tool_source

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        continues: bool = False,
    ) -> str:
        """The conversation as text. It has its special tokens: encode it with add_special_tokens=False.

        Messages that the template refuses are given to it in other forms of the same: system messages joined, before
        the others or in the user's, turns of one role joined, arguments of calls as text, ids of calls shortened.

        Args:
            messages: `role` and `content` each, in order, see `plain_messages`; roles are up to the template.
            add_generation_prompt: end with what begins an answer.
            tools: JSON schemas of functions that the model may call.
            variables: further ones that the template knows, such as enable_thinking.
            continues: end with the text of the last message, for an answer that goes on with it.

        Raises:
            ModelError: there is no message, one is malformed, or the template is, refuses them or runs too long.

        Source:
            Variables, functions and whitespace rules are those of transformers' apply_chat_template.
        """
        plain = plain_messages(messages)
        given = {
            **self.special_tokens,
            **plain_json(variables or {}, "variables of the chat template"),
            "add_generation_prompt": add_generation_prompt and not continues,
            "tools": None if tools is None else plain_json(list(tools), "tools"),
        }
        end = f"{secrets.token_hex(8)}end"  # nobody else knows it
        if continues:
            plain[-1]["content"] = f"{_text(plain[-1])}{end}"
        refusal: Exception | None = None
        lossy: str | None = None  # without the text of a late system message
        for changed in alternatives(plain):
            try:
                text = render_template(
                    self.source_for(tools is not None), {"documents": None, **given, "messages": changed}
                )
            except LimitError as error:
                raise ModelError(
                    f"{self.name}: {error}; a template must end before. Take the file that belongs to the weights."
                ) from None
            except Exception as error:  # a template can raise whatever an expression of Python can
                refusal = refusal or error
                continue
            if continues and end not in text:
                raise ModelError(f"{self.name}: writes no text of the last message; one that it writes is required.")
            text = text.rpartition(end)[0] if continues else text
            if all(_text(each).strip() in text for each in changed[1:] if each["role"] == "system"):
                return text
            lossy = lossy or text
        if lossy is not None:
            return lossy
        assert refusal is not None
        kind = "" if isinstance(refusal, TemplateError) else f"{type(refusal).__name__}: "
        raise ModelError(
            f"{self.name}: cannot render {len(plain)} messages ({kind}{refusal}); "
            f"{_required(plain)} that the template knows are required. Change the messages."
        ) from refusal

    def encode(
        self,
        tokenizer: Tokenizer,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        special_in_content: bool = False,
        **options: Any,
    ) -> ChatPrompt:
        """The tokens of a conversation, in which names of special tokens that messages hold are text.

        Args:
            tokenizer: of the model.
            messages: as `render` takes them, like the next one and the options.
            tools: JSON schemas of functions.
            special_in_content: let messages hold special tokens.

        Raises:
            ModelError: what `render` raises.
        """
        names = [] if special_in_content else sorted(tokenizer.special_names, key=len, reverse=True)
        mark = secrets.token_hex(8)  # nobody else can write the places of names

        def hidden(value: Any, kept: Sequence[str] = ()) -> Any:
            if isinstance(value, str):
                for number, name in enumerate(names):
                    value = value if name in kept else value.replace(name, f"{mark}x{number}x")
                return value
            if isinstance(value, list | tuple):
                return [hidden(each, kept) for each in value]
            return {key: hidden(each, kept) for key, each in value.items()} if isinstance(value, Mapping) else value

        thoughts = [name for pair in MARKERS for name in pair]  # templates look for them in what an assistant wrote
        plain = [hidden(each, thoughts if each.get("role") == "assistant" else ()) for each in plain_messages(messages)]
        text = self.render(plain, tools=None if tools is None else hidden(list(tools)), **options)
        ids: list[int] = []
        for place, part in enumerate(re.split(f"{mark}x([0-9]+)x", text)):
            if part:
                ids += tokenizer.encode_as_text(names[int(part)]) if place % 2 else tokenizer.encode(part, False)
        source = self.source_for(tools is not None)
        return ChatPrompt(ids, thought_form(source, text, _text(plain[-1]) if options.get("continues") else ""))


def encode_prompts(
    tokenizer: Tokenizer, folder: Path, prompts: Sequence[Prompt], variables: Mapping[str, Any] | None = None
) -> list[list[int]]:
    """Token ids of texts, and of messages as the chat template of the model in `folder` puts them.

    `variables` are those of the template.

    Raises:
        ModelError: there is no chat template for messages, or it refuses some; the prompt is named by its number.
        CheckpointError: the template cannot be read.
    """
    has_messages = any(not isinstance(prompt, str) for prompt in prompts)
    template = ChatTemplate.from_folder(folder) if has_messages else None
    ids = []
    for number, prompt in enumerate(prompts, 1):
        if template is None or isinstance(prompt, str):
            assert isinstance(prompt, str)
            ids.append(tokenizer.encode(prompt))
            continue
        try:
            ids.append(template.encode(tokenizer, prompt, variables=variables).token_ids)
        except ModelError as error:
            raise error if len(prompts) == 1 else ModelError(f"prompt {number}: {error}") from error
    return ids


def _text(message: Mapping[str, Any]) -> str:
    """The text of a message, parts of it joined."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def _required(messages: Sequence[Mapping[str, Any]]) -> str:
    """The members that a template which refuses messages may miss: roles and an order, or objects as arguments."""
    calls = [call.get("function", {}) for message in messages for call in message.get("tool_calls") or ()]
    others = [call["arguments"] for call in calls if not isinstance(call.get("arguments", {}), Mapping)]
    return f"arguments of calls that are objects, not {quote(others[0])}, and roles" if others else "roles and an order"
