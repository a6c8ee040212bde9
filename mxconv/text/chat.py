"""Chat templates: from messages to the text that a model was trained to answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mxconv.checkpoint.tokenizer_settings import CONFIG_FILE, TokenizerSettings
from mxconv.errors import ModelError
from mxconv.text.chat_templates import TEMPLATE_FILE, read_templates
from mxconv.text.messages import Message, Prompt, plain_json, plain_messages
from mxconv.text.template_sandbox import LimitError, render_template
from mxconv.text.tokenizer import Tokenizer


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
    ) -> str:
        """The conversation as text. It has its special tokens: encode it with add_special_tokens=False.

        Args:
            messages: `role` and `content` each, in order, see `plain_messages`; roles are up to the template.
            add_generation_prompt: end with what begins an answer.
            tools: JSON schemas of functions that the model may call.
            variables: further ones that the template knows, such as enable_thinking.

        Raises:
            ModelError: there is no message, one is malformed, or the template is, refuses them or runs too long.

        Source:
            Variables, functions and whitespace rules are those of transformers' apply_chat_template.
        """
        plain = plain_messages(messages)
        given = {
            **self.special_tokens,
            **plain_json(variables or {}, "variables of the chat template"),
            "messages": plain,
            "add_generation_prompt": add_generation_prompt,
            "tools": None if tools is None else plain_json(list(tools), "tools"),
        }
        try:
            return render_template(self.source_for(tools is not None), {"documents": None, **given})
        except LimitError as error:
            raise ModelError(
                f"{self.name}: {error}; a template must end before. Take the file that belongs to the weights."
            ) from None
        except Exception as error:  # a template can raise whatever an expression of Python can
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise ModelError(
                f"{self.name}: cannot render {len(plain)} messages ({kind}{error}); roles and an order that the "
                "template knows are required. Change the messages, or generate without --chat."
            ) from error


def encode_prompts(tokenizer: Tokenizer, folder: Path, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Token ids of texts, and of messages as the chat template of the model in `folder` puts them.

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
            ids.append(tokenizer.encode(template.render(prompt), add_special_tokens=False))
        except ModelError as error:
            raise error if len(prompts) == 1 else ModelError(f"prompt {number}: {error}") from error
    return ids
