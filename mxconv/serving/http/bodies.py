"""Bodies of requests, as OpenAI's interface has them.

Fields that would change nothing are accepted and ignored. Fields that would change the tokens in ways that mxconv does
not offer are accepted with the value that asks for nothing.
"""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from mxconv.speculation.sampling_in_use import Asked
from mxconv.speculation.selection import MAX_SEED
from mxconv.text.constraint import Kind
from mxconv.text.penalties import LEAST_REPETITION, MOST_BIAS, MOST_REPETITION

MOST_CHOICES = 128
MOST_STOPS = 16
LONGEST_STOP = 256  # characters
MOST_LOGPROBS = 20
MOST_BIASES = 1024
MOST_TOOLS = 128
MOST_ANSWERS, LONGEST_ANSWER = 1024, 1024  # to choose from, and characters of each

StopText = Annotated[str, Field(min_length=1, max_length=LONGEST_STOP)]
AnswerText = Annotated[str, Field(min_length=1, max_length=LONGEST_ANSWER)]
Token = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenName = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$"), AfterValidator(int)]  # a member's name: a token id
Bias = Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]


def only(*neutral: Any) -> AfterValidator:
    """A field that is there for clients that always send it."""

    def check(value: Any) -> Any:
        if value is not None and value not in neutral:
            allowed = " or ".join(map(repr, (*neutral, None)))
            raise PydanticCustomError(
                "unsupported_parameter", "not supported; leave it out, or send {allowed}", {"allowed": allowed}
            )
        return value

    return AfterValidator(check)


class Body(BaseModel):
    """A JSON object without unknown fields; texts are not numbers, nor numbers texts."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: bool = False  # of OpenAI's own; there is none here


class NamedSchema(Body):
    """A JSON Schema; its name and what it is for change no token, nor does `strict`: it always holds."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("value_error", "json_schema belongs to the type json_schema, and to no other")
        return self


class StructuredOutputs(Body):
    """As vLLM groups them since 0.11; the fields are those of `guided_json` and its like."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[AnswerText], Field(min_length=1, max_length=MOST_ANSWERS)] | None = None
    grammar: str | None = None


class MxconvOptions(Body):
    """Options that no other server has."""

    trace: bool = Field(False, description="Say of every token which level guessed it.")


class DecodingBody(Body):
    """Fields of both endpoints."""

    model: str | None = Field(None, description="A name that /v1/models lists; the first where it is left out.")
    n: int | None = Field(
        None, ge=1, le=MOST_CHOICES, description="Choices a prompt; number i has the seed `seed + i`."
    )
    seed: int | None = Field(
        None, ge=-(2**63), le=MAX_SEED, description="With one, the answer depends on the request alone."
    )
    temperature: float | None = Field(None, ge=0, le=100, description="0 always takes the likeliest token.")
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0, le=2**31 - 1, description="Not OpenAI's; 0 draws from all tokens.")
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
    mxconv: MxconvOptions | None = None

    # these ask for what does not touch tokens
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def asked(self) -> Asked:
        """How tokens are to be chosen, as far as the client says so."""
        found: Asked = {name: getattr(self, name) for name in Asked.__annotations__}  # type: ignore[assignment]
        return found

    @property
    def constraints(self) -> dict[str, tuple[Kind, str]]:
        """What answers must look like: kind and text by the field that says so."""
        found: dict[str, tuple[Kind, str]] = {}
        if (wanted := self.response_format) is not None and wanted.type != "text":
            schema = wanted.json_schema
            text = "" if schema is None else json.dumps(schema.schema_)
            found["response_format"] = ("json_object" if schema is None else "json_schema", text)
        group = self.structured_outputs or StructuredOutputs()
        given: list[tuple[str, Kind, Any]] = [
            ("structured_outputs.json", "json_schema", group.json_),
            ("structured_outputs.regex", "regex", group.regex),
            ("structured_outputs.grammar", "grammar", group.grammar),
            ("structured_outputs.choice", "choice", group.choice),
            ("guided_json", "json_schema", self.guided_json),
            ("json_schema", "json_schema", self.json_schema),
            ("guided_regex", "regex", self.guided_regex),
            ("guided_grammar", "grammar", self.guided_grammar),
            ("grammar", "grammar", self.grammar),
            ("guided_choice", "choice", self.guided_choice),
        ]
        asked = ((name, kind, value) for name, kind, value in given if value is not None)
        return found | {
            name: (kind, value if isinstance(value, str) else json.dumps(value)) for name, kind, value in asked
        }

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def wants_trace(self) -> bool:
        return self.mxconv is not None and self.mxconv.trace

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(DecodingBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[Token] | list[list[Token]] = Field(
        description="A text, token ids, or a list of either."
    )
    max_tokens: int | None = Field(None, ge=0, description="16 where it is left out; 0 with echo: the prompt alone.")
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)
    echo: bool | None = Field(None, description="The prompt before the answer; with logprobs, those of its tokens too.")
    best_of: Annotated[int | None, only(1)] = None
    suffix: Annotated[str | None, only("")] = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class CalledFunction(Body):
    name: str
    arguments: str

    @property
    def plain(self) -> dict[str, Any]:
        """Name and arguments, as an object where they are one: templates write it in their own way."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            value = None
        return {"name": self.name, "arguments": value if isinstance(value, dict) else self.arguments}


class WrittenCall(Body):
    """A call in a message that an assistant wrote."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # of streams, which some clients send back


class Message(Body):
    """A turn. `developer` is what templates call system."""

    role: Annotated[str, Field(min_length=1, max_length=64)]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None
    reasoning_content: str | None = Field(None, description="What an assistant thought, where its template knows it.")
    tool_calls: list[WrittenCall] | None = None
    tool_call_id: str | None = Field(None, description="Of the role tool: the call that this answers.")

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("value_error", "content is required, but where there are tool_calls")
        return self

    @property
    def plain(self) -> dict[str, Any]:
        given = self.content or ""
        text = given if isinstance(given, str) else "".join(part.text for part in given)
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": text}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(self, name)) is not None:
                found[name] = value
        if self.tool_calls:
            found["tool_calls"] = [
                {"id": call.id, "type": "function", "function": call.function.plain} for call in self.tool_calls
            ]
        return found


class Function(Body):
    """A function that the model may call; `strict` changes nothing: where calls are demanded, schemas always hold."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @property
    def plain(self) -> dict[str, Any]:
        return self.model_dump(exclude={"strict"}, exclude_none=True)


class Tool(Body):
    type: Literal["function"]
    function: Function


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


class ChatBody(DecodingBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: int | None = Field(None, ge=1, description="As long as it takes where it is left out.")
    max_completion_tokens: int | None = Field(None, ge=1, description="The newer name of max_tokens.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS, description="Needs logprobs.")
    modalities: Annotated[list[str] | None, only(["text"])] = None
    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = Field(
        None, description="Whether demanded calls may be several; true by default."
    )
    functions: Annotated[list[Any] | None, only([])] = None
    function_call: Annotated[str | None, only("none", "auto")] = None

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The functions that the model is told of."""
        return [] if self.tool_choice == "none" else [tool.function.plain for tool in self.tools or ()]

    @property
    def demanded(self) -> list[dict[str, Any]]:
        """Those of which it has to call one; none where it need not."""
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.offered if tool["name"] == self.tool_choice.function.name]
        return self.offered if self.tool_choice == "required" else []


class TokenizeBody(Body):
    """POST /tokenize, as vLLM (`prompt`, `messages`) and llama-server (`content`) have it."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = Field(None, description="Of texts: those that begin one; vLLM's default, true.")
    add_special: bool | None = Field(None, description="The same for `content`; llama-server's default, false.")
    add_generation_prompt: bool = Field(True, description="Of messages: end with what begins an answer.")
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
