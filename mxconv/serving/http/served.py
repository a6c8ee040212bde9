"""A server's limits, a model that it serves, and from bodies of requests to jobs: token ids, and how to decode."""

import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mxconv
from mxconv.decode import TextModel
from mxconv.errors import ModelError, MxconvError
from mxconv.kernels.engine import NUMPY
from mxconv.serving.http.api_error import invalid
from mxconv.serving.http.bodies import (
    ChatBody,
    CompletionBody,
    DecodingBody,
    DetokenizeBody,
    Message,
    NamedTool,
    TokenizeBody,
)
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.sampling_in_use import CHAT_DEFAULTS, Asked, SamplingInUse
from mxconv.speculation.selection import GREEDY, MAX_SEED, Selection
from mxconv.text.chat import ChatTemplate
from mxconv.text.constraint import Constraint, Grammar
from mxconv.text.tool_calls import ToolForm, with_instructions
from mxconv.text.tool_forms import form_of

DEFAULT_MAX_TOKENS = 16  # OpenAI's, of completions
SEED_LIMIT = 2**53  # seeds that are drawn here come back whole from any reader of JSON
MOST_PROMPTS = 128
PLAIN_TOKENS, PLAIN_SECONDS = 48, 1.5  # at most, to measure plain decoding
LEAST_KEY = 8  # characters; a shorter key can be guessed


@dataclass(frozen=True)
class ServeOptions:
    """Options of a server.

    Args:
        host: the address to listen on.
        port: 0 for any free one.
        api_key: that clients must have; None lets everyone in.
        max_sequences: decoded at a time, of each model.
        kv_bytes: for keys and values, of all models together; None is no limit.
        max_queue: sequences that may wait while others are decoded, of all models together.
        max_prompt_tokens: of a prompt; None: as many as the target has positions.
        max_new_tokens: of a choice; None: likewise.
        max_body_bytes: of a request.
        request_seconds: from the first byte of a body to the last one of its answer.
        slow_seconds: for a request's head, and for its body.
        drain_seconds: in which running requests may finish once the server is told to stop.

    Raises:
        ModelError: the key is too short.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    max_sequences: int = 16
    kv_bytes: int | None = None
    max_queue: int = 64
    max_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    max_body_bytes: int = 4_000_000
    request_seconds: float = 600.0
    slow_seconds: float = 10.0
    drain_seconds: float = 5.0

    def __post_init__(self) -> None:
        if self.api_key is not None and len(self.api_key) < LEAST_KEY:
            raise ModelError(
                f"API key: {len(self.api_key)} characters; at least {LEAST_KEY} are required. Choose a longer one."
            )


@dataclass(frozen=True)
class JobPrompt:
    """One of a request's prompts, as the target reads it; `text` is what `echo` shows, empty without it."""

    token_ids: list[int]
    text: str = ""


@dataclass(frozen=True)
class Job:
    """A request as it is decoded.

    Args:
        served: the model that answers.
        body: of the request.
        prompts: one of a chat, one or more of completions.
        max_new_tokens: of each choice; 0 where prompts alone are wanted.
        selection: of the first choice of each prompt.
        sampling: the same by parameters, with the origin of each, for clients.
        stop_strings: that end a choice.
        num_logprobs: likeliest tokens to name at every place; None computes no logprobs.
        scores_prompts: whether the tokens of prompts have logprobs too.
    """

    served: "ServedModel"
    body: DecodingBody
    prompts: list[JobPrompt]
    max_new_tokens: int
    selection: Selection
    sampling: SamplingInUse
    stop_strings: list[str]
    num_logprobs: int | None = None
    scores_prompts: bool = False
    tool_form: ToolForm | None = None  # how answers are taken apart; None leaves them whole

    def selection_of(self, choice: int) -> Selection:
        """Choices of a prompt draw with the seeds `seed`, `seed + 1` and so on."""
        return replace(self.selection, seed=(self.selection.seed + choice) % (MAX_SEED + 1))


class ServedModel:
    """A text model under the name that clients call it, with its engine, and limits of prompts and answers."""

    def __init__(self, model: TextModel, name: str, engine: Engine, options: ServeOptions) -> None:
        self.name = name
        self.engine = engine
        target = model.loaded.levels[0].decoder
        assert target is not None
        self.decoder = target
        self.created = int(time.time())
        self.tokenizer = model.loaded.tokenizer
        self.level_names = [level.name for level in model.loaded.levels]
        self.fingerprint = _fingerprint(model)
        self.num_positions = model.loaded.config.max_position_embeddings
        self._vocab_size = model.loaded.config.vocab_size
        self.plain_tokens_per_second = _plain_tokens_per_second(model)
        self._vocabulary = model.vocabulary
        self._recommended = model.recommended
        self._max_prompt_tokens = min(options.max_prompt_tokens or self.num_positions, self.num_positions)
        self._max_new_tokens = min(options.max_new_tokens or self.num_positions, self.num_positions)
        try:
            self._template: ChatTemplate | None = ChatTemplate.from_folder(model.loaded.folder)
        except MxconvError as error:
            self._template, self._no_chat = None, str(error)

    @property
    def entry(self) -> dict[str, Any]:
        """The model as /v1/models lists it."""
        entry = {"id": self.name, "object": "model", "created": self.created, "owned_by": "mxconv"}
        return {**entry, "max_model_len": self.num_positions, "mxconv": self.about}

    @property
    def about(self) -> dict[str, Any]:
        """The field `mxconv` of /v1/models."""
        return {
            "levels": self.level_names,
            "num_positions": self.num_positions,
            "can_chat": self._template is not None,
            "sampling": self.sampling({}).members,
            "plain_tokens_per_second": self.plain_tokens_per_second,
        }

    def completion_job(self, body: CompletionBody) -> Job:
        """The job of a request; raises ApiError for a field that cannot be served."""
        if body.max_tokens == 0 and not body.echo:
            raise invalid("max_tokens", "0 without echo; at least 1 is required. Ask for more, or for the prompt.")
        wanted = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        prompts = [self._prompt(prompt, bool(body.echo)) for prompt in _prompts(body.prompt)]
        job = self._job(body, prompts, "prompt", wanted, body.logprobs)
        return replace(job, scores_prompts=bool(body.echo) and body.logprobs is not None)

    def chat_job(self, body: ChatBody) -> Job:
        """The job of a request; raises ApiError for a field that cannot be served."""
        if body.top_logprobs is not None and not body.logprobs:
            raise invalid("top_logprobs", f'{body.top_logprobs} without logprobs; send "logprobs": true as well.')
        wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        if body.tool_choice not in (None, "none", "auto") and not body.demanded:
            named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else "a function"
            raise invalid("tool_choice", f"{named} is not among the {len(body.offered)} tools; it must be. Add it.")
        tokens = self._chat_tokens(body.messages, tools=body.offered)
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._job(body, [JobPrompt(tokens)], "messages", wanted, num_logprobs)

    def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        """The tokens of a text, or of messages; raises ApiError for a field that cannot be served."""
        if body.messages is not None:
            tokens = self._chat_tokens(body.messages, body.add_generation_prompt)
        else:
            is_prompt = body.prompt is not None
            text, special = (body.prompt, body.add_special_tokens) if is_prompt else (body.content, body.add_special)
            try:
                tokens = self.tokenizer.encode(text or "", is_prompt if special is None else special)
            except MxconvError as error:
                raise invalid("prompt" if is_prompt else "content", str(error)) from error
        found: dict[str, Any] = {"tokens": tokens, "count": len(tokens), "max_model_len": self.num_positions}
        if body.return_token_strs:
            found["token_strs"] = [self.tokenizer.name_of(token) for token in tokens]
        if body.with_pieces:
            found["tokens"] = [{"id": token, "piece": self.tokenizer.decode([token], False)} for token in tokens]
        return found

    def detokenize(self, body: DetokenizeBody) -> dict[str, str]:
        """The text of tokens, special ones included; raises ApiError for ids that there are not."""
        if unknown := next((token for token in body.tokens if token >= self._vocab_size), None):
            raise invalid("tokens", f"token id {unknown}; ids from 0 to {self._vocab_size - 1} are required.")
        text = self.tokenizer.decode(body.tokens, skip_special_tokens=False)
        return {"prompt": text, "content": text}

    def _chat_tokens(
        self, messages: list[Message], add_generation_prompt: bool = True, tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Tokens of a conversation; a template that knows no functions has them in a system message."""
        if self._template is None:
            raise invalid("messages", f"{self._no_chat} /v1/completions needs none.", "no_chat_template")
        turns = [message.plain for message in messages]
        if "tools" not in self._template.source_for(bool(tools)):
            turns = with_instructions(turns, tools)
        functions = [{"type": "function", "function": tool} for tool in tools] or None
        try:
            text = self._template.render(turns, add_generation_prompt, tools=functions)
            return self.tokenizer.encode(text, add_special_tokens=False)
        except MxconvError as error:
            raise invalid("messages", str(error)) from error

    def _prompt(self, prompt: str | list[int], echo: bool) -> JobPrompt:
        if isinstance(prompt, str):
            try:
                return JobPrompt(self.tokenizer.encode(prompt), prompt if echo else "")
            except MxconvError as error:
                raise invalid("prompt", str(error)) from error
        if unknown := next((token for token in prompt if token >= self._vocab_size), None):
            raise invalid("prompt", f"token id {unknown}; ids from 0 to {self._vocab_size - 1} are required.")
        return JobPrompt(prompt, self.tokenizer.decode(prompt) if echo else "")

    def _job(
        self, body: DecodingBody, prompts: list[JobPrompt], param: str, wanted: int | None, num_logprobs: int | None
    ) -> Job:
        longest = max(len(prompt.token_ids) for prompt in prompts)
        if not all(prompt.token_ids for prompt in prompts):
            raise invalid(param, "0 tokens; at least one is required. Give a text.")
        if longest > self._max_prompt_tokens:
            message = f"{longest} tokens; at most {self._max_prompt_tokens} are taken. Shorten it."
            raise invalid(param, message, "context_length_exceeded")
        room = self.num_positions + 1 - longest  # the last token needs no position of its own
        if wanted is None:
            wanted = min(room, self._max_new_tokens)
        if wanted > self._max_new_tokens:
            raise invalid("max_tokens", f"{wanted}; at most {self._max_new_tokens} are given. Ask for fewer.")
        if wanted > room:
            message = f"{wanted} after {longest} tokens; the model has {self.num_positions} positions. Ask for fewer."
            raise invalid("max_tokens", message, "context_length_exceeded")
        sampling = self.sampling(body.asked)
        seed = secrets.randbelow(SEED_LIMIT) if body.seed is None else body.seed % (MAX_SEED + 1)
        selection = sampling.selection(seed)
        try:
            selection.penalties.check(self._vocab_size)
        except MxconvError as error:
            raise invalid("logit_bias", str(error).removeprefix("logit_bias: ")) from error
        selection = replace(selection, constraint=self._grammar(body))
        stops = [*self._recommended.stop_strings, *body.stop_strings]
        form = self._form(body)
        return Job(self, body, prompts, wanted, selection, sampling, stops, num_logprobs, tool_form=form)

    def _form(self, body: DecodingBody) -> ToolForm | None:
        """How calls are read in the answers to a request; None where they are text alone."""
        if self._template is None or not isinstance(body, ChatBody):
            return None
        form = form_of(self._template.source_for(bool(body.offered)))
        return form if body.offered or form.always_reads else None

    def _grammar(self, body: DecodingBody) -> Grammar | None:
        """What answers must look like; raises ApiError where that cannot be followed, or is said twice."""
        asked = dict(body.constraints)
        if isinstance(body, ChatBody) and body.demanded and self._template is not None:
            form, several = form_of(self._template.source_for(True)), body.parallel_tool_calls is not False
            try:
                asked["tool_choice"] = "grammar", form.grammar(body.demanded, several, self.tokenizer)
            except ModelError as error:
                raise invalid("tool_choice", str(error)) from error
        if not asked:
            return None
        name, (kind, text) = next(iter(asked.items()))
        if others := list(asked)[1:]:
            raise invalid(name, f"beside {', '.join(others)}; one constraint is required. Leave out the others.")
        try:
            return self._vocabulary.compile(Constraint(kind, text), is_from_stranger=True)
        except MxconvError as error:
            raise invalid(name, str(error)) from error

    def sampling(self, asked: Asked) -> SamplingInUse:
        """How tokens are chosen for a request: what it leaves out is as generation_config.json recommends."""
        return SamplingInUse.of(asked, self._recommended, CHAT_DEFAULTS)


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """A list of prompts, whichever way it was given."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(one, int) for one in given):
        return [[one for one in given if isinstance(one, int)]]
    if len(given) > MOST_PROMPTS:
        raise invalid("prompt", f"{len(given)} prompts; at most {MOST_PROMPTS} are taken. Send several requests.")
    return [one for one in given if not isinstance(one, int)]


def _fingerprint(model: TextModel) -> str:
    """Equal where a seed gives equal tokens: the package, the target, the kernel and mxconv's version."""
    loaded = model.loaded
    kernel = NUMPY if loaded.matrices.engine is None else loaded.matrices.engine.name
    digest = hashlib.sha256(loaded.package.manifest.to_bytes())
    digest.update("\0".join((loaded.levels[0].name, kernel, mxconv.__version__)).encode())
    return f"mxconv-{digest.hexdigest()[:16]}"


def _plain_tokens_per_second(model: TextModel) -> float | None:
    """The speed of the target without drafts, from one short text; None where it is too short to tell."""
    hierarchy = Hierarchy(model.loaded.levels[:1])
    generation = hierarchy.begin()
    first = model.loaded.tokenizer.bos_token_id or 0
    for _ in hierarchy.stream([first], PLAIN_TOKENS, (), GREEDY, generation):
        if generation.seconds > PLAIN_SECONDS:
            break
    return generation.decoding_tokens_per_second
