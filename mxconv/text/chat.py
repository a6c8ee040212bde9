"""Chat templates: from messages to the text that a model was trained to answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from mxconv.arch.fields import Fields
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.errors import ModelError
from mxconv.text.messages import Message, Prompt, plain_json, plain_messages
from mxconv.text.template_sandbox import LimitError, render_template
from mxconv.text.tokenizer import Tokenizer

MAX_TEMPLATE_BYTES = 1_000_000  # the longest of known models have 20,000
TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template."""

    source: str  # Jinja
    name: str  # what messages call it
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # texts by name: bos_token, eos_token and the like

    @classmethod
    def from_folder(cls, folder: Path) -> "ChatTemplate":
        """Read chat_template.jinja, or else `chat_template` in tokenizer_config.json: of several the default.

        Raises:
            ModelError: there is none, or it is too long or no text.
            CheckpointError: a file cannot be read.
        """
        config = Fields.read(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else Fields({}, str(folder))
        special_tokens = _special_tokens(folder, config)
        path, name = folder / TEMPLATE_FILE, f"{folder / CONFIG_FILE}: chat_template"
        if path.is_file():
            _check_length(str(path), check_regular_file(path))
            with open_file(path) as file:
                source = file.read(MAX_TEMPLATE_BYTES)
            try:
                return cls(source.decode(), str(path), special_tokens)
            except UnicodeDecodeError as error:
                raise ModelError(
                    f"{path}: byte {error.start} is no UTF-8; text is required. Take the file that belongs to the "
                    "weights."
                ) from error
        value = config.values.get("chat_template")
        if value is None:
            raise ModelError(
                f"{folder}: there is no chat template; {TEMPLATE_FILE}, or chat_template in {CONFIG_FILE}, is "
                "required. Use an instruction-tuned model, or generate without --chat."
            )
        named = {"default": value} if isinstance(value, str) else _named(config, value)
        if "default" not in named:
            raise ModelError(
                f"{name}: holds {', '.join(map(repr, named)) or 'none'}; a template 'default' is required. Name one so."
            )
        _check_length(name, len(named["default"].encode(errors="replace")))
        return cls(named["default"], name, special_tokens)

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
            return render_template(self.source, {"documents": None, **given})
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


def _check_length(name: str, num_bytes: int) -> None:
    if num_bytes > MAX_TEMPLATE_BYTES:
        raise ModelError(
            f"{name}: {num_bytes:,} bytes long; at most {MAX_TEMPLATE_BYTES:,} are read. "
            "Take the file that belongs to the weights."
        )


def _named(config: Fields, value: object) -> dict[str, str]:
    """The templates of a list of objects with a `name` and a `template`."""
    templates = {}
    for entry in value if isinstance(value, list) else [None]:
        name, source = (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(source, str):
            config.reject("chat_template", "a text, or a list of objects with a name and a template, is required")
        templates[name] = source
    return templates


def _special_tokens(folder: Path, config: Fields) -> dict[str, str]:
    """Every `..._token` that is named, as text."""
    path = folder / "special_tokens_map.json"
    listed = Fields.read(path).values if path.is_file() else {}
    tokens = {}
    for key, value in [*listed.items(), *config.values.items()]:
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            tokens[key] = text
    return tokens
