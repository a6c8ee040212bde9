"""Bodies of requests, as OpenAI's interface has them.

Fields that would change no token are accepted and ignored (`IGNORED`). Fields that would change the tokens in ways that
mxconv does not offer are accepted with the values that ask for nothing (`NEUTRAL`).
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from mxconv.serving.http.history import Body, Message, NamedTool, Neutral, Note, Tool
from mxconv.speculation.selection import MAX_SEED, RequestedSampling
from mxconv.text.constraint import Kind
from mxconv.text.distribution import LEAST_REPETITION, MOST_BIAS, MOST_REPETITION

MOST_CHOICES = 128
MOST_STOPS = 16
LONGEST_STOP = 256  # characters
MOST_LOGPROBS = 20
MOST_BIASES = 1024
MOST_TOOLS = 128
MOST_ANSWERS, LONGEST_ANSWER = 1024, 1024  # to choose from, and characters of each

# What clients of OpenAI, vLLM, llama-server, Ollama and OpenRouter say of storage, billing, speed and caches.
IGNORED = frozenset((
    *("user", "metadata", "store", "service_tier", "safety_identifier", "moderation", "verbosity", "prediction"),
    *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_control", "cache_prompt"),
    *("priority", "request_id", "id_slot", "slot_id", "timings_per_token", "return_progress", "keep_alive"),
    *("num_ctx", "provider", "transforms", "route", "models", "session_id", "cache_salt"),
    *("return_tokens_as_token_ids", "include_reasoning", "include_thoughts", "usage"),
))  # fmt: skip
NEUTRAL: Neutral = {
    **{"length_penalty": (1,), "use_beam_search": (False,), "num_beams": (1,), "early_stopping": (False,)},
    **{"include_stop_str_in_output": (False,), "skip_special_tokens": (True,), "xtc_probability": (0,)},
    **{"typical_p": (1,), "tfs_z": (1,), "top_a": (0,), "mirostat": (0,), "dynatemp_range": (0,)},
    **{"dry_multiplier": (0,), "top_n_sigma": (-1,), "bad_words": ([],), "detokenize": (True,), "n_keep": (0, -1)},
    **{"add_special_tokens": (False,), "return_token_ids": (False,), "prompt_logprobs": (0,)},
    **{"logits_processors": ([],), "spaces_between_special_tokens": (True,)},
}  # fmt: skip
CONSTRAINTS: dict[str, Kind] = {  # by the member that has the text
    **{"structured_outputs.json_": "json_schema", "structured_outputs.regex": "regex"},
    **{"structured_outputs.grammar": "grammar", "structured_outputs.choice": "choice"},
    **{"guided_json": "json_schema", "json_schema": "json_schema", "guided_regex": "regex"},
    **{"guided_grammar": "grammar", "grammar": "grammar", "guided_choice": "choice"},
}
StopText = Annotated[str, Field(max_length=LONGEST_STOP)]
AnswerText = Annotated[str, Field(min_length=1, max_length=LONGEST_ANSWER)]
Token = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenName = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$"), AfterValidator(int)]  # a member's name: a token id
Bias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]
MaxTokens = Annotated[int, Field(ge=-1)]  # -1 for what is left
Limit = Annotated[int, Field(ge=-1), AfterValidator(lambda limit: max(limit, 0))]  # 0 and -1 are none


class StreamOptions(Note):
    include_usage: bool = False
    continuous_usage_stats: bool = Field(False, description="As vLLM has it: the usage so far in every chunk.")


class NamedSchema(Note):
    """A JSON Schema; its name and what it is for change no token, nor does `strict`: it always holds."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="As llama-server has it.")

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None) and self.schema_ is None:
            raise PydanticCustomError("value_error", "json_schema belongs to the type json_schema, and to no other")
        return self

    @property
    def schema_asked_for(self) -> dict[str, Any] | None:
        return self.schema_ if self.json_schema is None else self.json_schema.schema_


class StructuredOutputs(Body):
    """Constraints as vLLM groups them since 0.11; the fields are those of `guided_json` and its like."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[AnswerText], Field(min_length=1, max_length=MOST_ANSWERS)] | None = None
    grammar: str | None = None


class DraftOptions(Body):
    """Options of every dialect that no other server has."""

    drafts: bool = Field(True, description="False decodes this request plainly: the same text, by the target alone.")


class MxconvOptions(DraftOptions):
    """Own options of completions and chats."""

    trace: bool = Field(False, description="Say of every token which level guessed it.")


class OllamaOptions(Body):
    """Ollama's, of which sizes change no token; others have fields of their own here."""

    ignored = frozenset(("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "use_mmap", "numa"))


class DecodingBody(Body):
    """Fields of both endpoints."""

    aliases: ClassVar[Mapping[str, str]] = {
        **{"repeat_penalty": "repetition_penalty", "n_predict": "max_tokens", "min_new_tokens": "min_tokens"}
    }
    ignored = IGNORED
    neutral: ClassVar[Neutral] = NEUTRAL

    model: str | None = Field(None, description="A name that /v1/models lists; the first where it is left out.")
    n: int | None = Field(
        None, ge=1, le=MOST_CHOICES, description="Choices a prompt; number i has the seed `seed + i`."
    )
    seed: int | None = Field(
        None, ge=-(2**63), le=MAX_SEED, description="With one, the answer depends on the request alone."
    )
    temperature: float | None = Field(None, ge=0, le=100, description="0 always takes the likeliest token.")
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: Annotated[Limit, Field(le=2**31 - 1)] | None = Field(
        None, description="Not OpenAI's; 0 and -1 draw from all tokens."
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="Not OpenAI's; least chance of a token, in those of the likeliest."
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(
        None, ge=LEAST_REPETITION, le=MOST_REPETITION, description="Not OpenAI's; transformers', 1 is none."
    )
    logit_bias: Annotated[dict[TokenName, Bias], Field(max_length=MOST_BIASES)] | None = Field(
        None, description="What is added to the logits of tokens, by their ids."
    )
    stop: StopText | Annotated[list[StopText], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[Token], Field(max_length=MOST_STOPS)] | None = Field(
        None, description="As vLLM has it: tokens that end a choice, and are no part of its text."
    )
    ignore_eos: bool | None = Field(None, description="As vLLM has it: the model's own end ends nothing.")
    min_tokens: int | None = Field(None, ge=0, description="As vLLM has it: no end before so many tokens.")
    best_of: int | None = Field(None, description="As many as n: all are given.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = Field(None, description="As vLLM names it: a JSON Schema.")
    guided_regex: str | None = Field(None, description="A regular expression that the whole answer matches.")
    guided_grammar: str | None = Field(None, description="A grammar in GBNF or Lark.")
    guided_choice: Annotated[list[AnswerText], Field(min_length=1, max_length=MOST_ANSWERS)] | None = None
    json_schema: dict[str, Any] | None = Field(None, description="As llama-server names it.")
    grammar: str | None = Field(None, description="As llama-server names it: GBNF or Lark.")
    options: OllamaOptions | None = None
    mxconv: MxconvOptions | None = None

    @model_validator(mode="after")
    def _gives_all_of_the_best(self) -> Self:
        if self.best_of not in (None, self.num_choices):
            found = {"members": ("best_of",), "allowed": str(self.num_choices)}
            raise PydanticCustomError("unsupported_parameter", "not supported; leave it out, or send {allowed}", found)
        return self

    @property
    def requested(self) -> RequestedSampling:
        """The sampling that the client asks for, as far as it says so."""
        found: RequestedSampling = {name: getattr(self, name) for name in RequestedSampling.__annotations__}  # type: ignore[assignment]
        return found

    @property
    def constraints(self) -> dict[str, tuple[Kind, str]]:
        """Constraints of the answers: kind and text by the field that says so."""
        found: dict[str, tuple[Kind, str]] = {}
        if (wanted := self.response_format) is not None and wanted.type != "text":
            schema = wanted.schema_asked_for
            text = "" if schema is None else json.dumps(schema)
            found["response_format"] = ("json_object" if schema is None else "json_schema", text)
        group = vars(self.structured_outputs or StructuredOutputs())
        for name, kind in CONSTRAINTS.items():
            value = group[name.partition(".")[2]] if "." in name else getattr(self, name)
            if value is not None:
                found[name.removesuffix("_")] = kind, value if isinstance(value, str) else json.dumps(value)
        return found

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def stop_strings(self) -> list[str]:
        return [stop for stop in ([self.stop] if isinstance(self.stop, str) else self.stop or ()) if stop]

    @property
    def wants_trace(self) -> bool:
        return self.mxconv is not None and self.mxconv.trace

    @property
    def uses_drafts(self) -> bool:
        return self.mxconv is None or self.mxconv.drafts

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(DecodingBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[Token] | list[list[Token]] = Field(
        description="A text, token ids, or a list of either."
    )
    neutral: ClassVar[Neutral] = {**NEUTRAL, "suffix": ("",)}
    max_tokens: MaxTokens | None = Field(
        None, description="16 where it is left out, -1 for what is left; 0 with echo: the prompt alone."
    )
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    echo: bool | None = Field(None, description="The prompt before the answer; with logprobs, those of its tokens too.")


class TemplateFields(Body):
    """Fields of a request for the chat template, by the names that servers have for it."""

    chat_template_kwargs: dict[str, Any] | None = Field(None, description="As vLLM has it: the template's variables.")
    enable_thinking: bool | None = None
    think: bool | str | None = Field(None, description="As Ollama has it: whether, or how much.")
    thinking: dict[str, Any] | None = Field(None, description="As Anthropic has it: `type` disabled, or another one.")
    reasoning: dict[str, Any] | None = Field(None, description="As OpenRouter has it: `effort` or `enabled`.")
    reasoning_effort: str | None = Field(None, description="`none` is no thinking; what else there is, models know.")
    add_generation_prompt: bool | None = Field(None, description="End with what begins an answer; true by default.")
    continue_final_message: bool | None = Field(
        None, description="Go on with the last message; true by default where it is an assistant's."
    )

    @property
    def variables(self) -> dict[str, Any]:
        """Variables of the template; what a request says of thinking has both names that templates know."""
        reasoning = self.reasoning or {}
        effort = (
            self.reasoning_effort or reasoning.get("effort") or (self.think if isinstance(self.think, str) else None)
        )
        kind = (self.thinking or {}).get("type")
        wanted = None if kind is None else kind != "disabled"
        given = (self.enable_thinking, self.think, reasoning.get("enabled"), wanted, effort)
        said = next((each for each in given if each is not None), None)
        found: dict[str, Any] = {}
        if said is not None:
            found |= dict.fromkeys(("enable_thinking", "thinking"), said not in (False, "none"))
        if effort not in (None, "none"):
            found["reasoning_effort"] = effort
        return found | (self.chat_template_kwargs or {})

    def continues(self, messages: list[Message]) -> bool:
        """Whether the last message is to be continued, and not answered."""
        if self.continue_final_message is not None:
            return self.continue_final_message
        is_open = messages[-1].role == "assistant" and not messages[-1].plain.get("tool_calls")
        return is_open and self.add_generation_prompt is not False


class ChatBody(DecodingBody, TemplateFields):
    """POST /v1/chat/completions."""

    neutral: ClassVar[Neutral] = {
        **{**NEUTRAL, "modalities": (["text"],), "functions": ([],), "function_call": ("none", "auto")},
        **{"echo": (False,)},
    }
    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: MaxTokens | None = Field(None, description="As long as it takes where it is left out, or -1.")
    max_completion_tokens: MaxTokens | None = Field(None, description="The newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS, description="Needs logprobs.")
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(
        None, description="Whether demanded calls may be several; true by default."
    )
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = Field(
        None, description="As llama-server has it: none leaves what the model thinks in the content."
    )

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The functions that the model is told of."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        return [tool.function.plain for tool in tools if tool.type == "function" and tool.function is not None]

    @property
    def demanded(self) -> list[dict[str, Any]]:
        """The functions of which it has to call one; none where it need not."""
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.offered if tool["name"] == self.tool_choice.function.name]
        return self.offered if self.tool_choice == "required" else []

    @property
    def notes(self) -> list[str]:
        """A sentence for each part of the request that is not done."""
        kinds = [(place, tool.type) for place, tool in enumerate(self.tools or ()) if tool.type != "function"]
        return [
            f"tools[{place}]: a tool of the type {kind!r} is left out; functions alone are called"
            for place, kind in kinds
        ]


class TokenizeBody(TemplateFields):
    """POST /tokenize, as vLLM (`prompt`, `messages`) and llama-server (`content`) have it."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = Field(None, description="Of texts: those that begin one; vLLM's default, true.")
    add_special: bool | None = Field(None, description="The same for `content`; llama-server's default, false.")
    tools: list[Tool] | None = Field(None, description="Of messages: the functions that the model is told of.")
    return_token_strs: bool = False
    with_pieces: bool = False

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if sum(given is not None for given in (self.prompt, self.content, self.messages)) != 1:
            raise PydanticCustomError("value_error", "one of prompt, content and messages is required")
        return self


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[Token]
