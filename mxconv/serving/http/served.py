"""A model that a server has, and from bodies of requests to jobs: token ids, and how to decode."""

import hashlib
import json
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
    TemplateFields,
    TokenizeBody,
)
from mxconv.serving.http.history import Message, NamedTool
from mxconv.serving.http.serve_options import ServeOptions
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.selection import CHAT_DEFAULTS, MAX_SEED, RequestedSampling, SamplingInUse, Selection
from mxconv.text.chat import ChatPrompt, ChatTemplate
from mxconv.text.constraint import Constraint, Grammar
from mxconv.text.json_schema import unheld_formats
from mxconv.text.thought_reader import ThoughtForm
from mxconv.text.tool_calls import ToolForm, calls_or_json, parameters_of, parsed, with_instructions
from mxconv.text.tool_forms import form_of

DEFAULT_MAX_TOKENS = 16  # OpenAI's, of completions
SEED_LIMIT = 2**53  # seeds that are drawn here come back whole from any reader of JSON
MOST_PROMPTS = 128


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
        tool_form: how calls are taken out of answers; None leaves them in.
        thought_form: how thoughts are taken out of answers; None leaves them in.
        notes: what of the request is not done, one sentence each.
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
    tool_form: ToolForm | None = None
    thought_form: ThoughtForm | None = None
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> list[int]:
        """Special tokens whose names are part of the text, since readers of answers need to see them."""
        tools = () if self.tool_form is None else self.tool_form.markers
        thought = () if self.thought_form is None else (self.thought_form.begin, self.thought_form.end)
        ids = map(self.served.tokenizer.special_token_id, (*tools, *thought))
        return [token for token in ids if token is not None]

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end a choice."""
        ends = frozenset() if self.body.ignore_eos else self.served.tokenizer.eos_token_ids
        return ends | frozenset(self.body.stop_token_ids or ())

    @property
    def about(self) -> dict[str, Any]:
        """The field `mxconv` of its answers."""
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"seed": self.selection.seed, **notes}

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
        self.level_names = [level.name for level in engine.hierarchy.levels]
        self.fingerprint = _fingerprint(model)
        self.num_positions = model.loaded.config.max_position_embeddings
        self._vocab_size = model.loaded.config.vocab_size
        self._vocabulary = model.vocabulary
        self._recommended = model.recommended
        self._max_prompt_tokens = min(options.max_prompt_tokens or self.num_positions, self.num_positions)
        self._max_new_tokens = min(options.max_new_tokens or self.num_positions, self.num_positions)
        self._special_in_content = options.special_tokens_in_content
        self._variables = dict(model.template_variables)
        try:
            template = ChatTemplate.from_folder(model.loaded.folder)
            self._template: ChatTemplate | None = replace(template, name="the model's chat template")
        except MxconvError:
            self._template = None

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
        }

    def completion_job(self, body: CompletionBody) -> Job:
        """The job of a request; raises ApiError for a field that cannot be served."""
        if body.max_tokens == 0 and not body.echo:
            raise invalid("max_tokens", "0 without echo; at least 1 is required. Ask for more, or for the prompt.")
        wanted = {None: DEFAULT_MAX_TOKENS, -1: None}.get(body.max_tokens, body.max_tokens)
        prompts = [self._prompt(prompt, bool(body.echo)) for prompt in _prompts(body.prompt)]
        job = self._job(body, prompts, "prompt", wanted, body.logprobs)
        return replace(job, scores_prompts=bool(body.echo) and body.logprobs is not None)

    def chat_job(self, body: ChatBody) -> Job:
        """The job of a request; raises ApiError for a field that cannot be served."""
        if body.top_logprobs is not None and not body.logprobs:
            raise invalid("top_logprobs", f'{body.top_logprobs} without logprobs; send "logprobs": true as well.')
        wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        if wanted == 0:
            raise invalid("max_tokens", "0; at least 1, or -1 for as many as there is room for, is required.")
        if body.tool_choice not in (None, "none", "auto") and not body.demanded:
            named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else "a function"
            raise invalid("tool_choice", f"{named} is not among the {len(body.offered)} tools; it must be. Add it.")
        prompt = self._chat_prompt(body, body.messages, body.offered)
        tokens, thought = prompt.token_ids, prompt.thought
        if thought is not None and thought.is_open:
            kinds = [kind for kind, _ in body.constraints.values()]
            if body.demanded or any(kind.startswith("json") for kind in kinds):  # which have no place for a thought
                tokens = [*tokens, *self.tokenizer.encode(thought.closed, False)]
                thought = replace(thought, is_open=False)
            thought = replace(thought, may_lack=bool(kinds))
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        job = self._job(body, [JobPrompt(tokens)], "messages", None if wanted == -1 else wanted, num_logprobs)
        return job if body.reasoning_format == "none" else replace(job, thought_form=thought)

    def tokenize(self, body: TokenizeBody) -> dict[str, Any]:
        """The tokens of a text, or of messages; raises ApiError for a field that cannot be served."""
        if body.messages is not None:
            offered = [tool.function.plain for tool in body.tools or () if tool.function is not None]
            tokens = self._chat_prompt(body, body.messages, offered).token_ids
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

    def _chat_prompt(
        self, fields: TemplateFields, messages: list[Message], tools: Sequence[dict[str, Any]]
    ) -> ChatPrompt:
        """A conversation as the model reads it; a template that knows no functions has them in a system message."""
        if self._template is None:
            message = "this model has no chat template; one is required. Use /v1/completions, which needs none."
            raise invalid("messages", message, "no_chat_template")
        turns = [message.plain for message in messages]
        continues = fields.continues(messages)
        if continues and turns[-1]["role"] != "assistant":
            message = f"the last message is of the role {turns[-1]['role']!r}; an assistant's is required. Add it."
            raise invalid("continue_final_message", message)
        if "tools" not in self._template.source_for(bool(tools)):
            turns = with_instructions(turns, tools)
        functions = [{"type": "function", "function": tool} for tool in tools] or None
        try:
            return self._template.encode(
                self.tokenizer,
                turns,
                tools=functions,
                special_in_content=self._special_in_content,
                add_generation_prompt=fields.add_generation_prompt is not False,
                variables=self._variables | fields.variables,
                continues=continues,
            )
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
            message = f"prompt is too long: {longest} tokens; at most {self._max_prompt_tokens} are taken. Shorten it."
            raise invalid(param, message, "context_length_exceeded")
        room = self.num_positions + 1 - longest  # the last token needs no position of its own
        most = min(room, self._max_new_tokens)
        notes = body.notes if isinstance(body, ChatBody) else []
        if wanted is not None and wanted > most:
            notes.append(f"max_tokens: {wanted}; at most {most} are given after {longest} tokens of a prompt")
        wanted = most if wanted is None else min(wanted, most)
        sampling = self.sampling(body.requested)
        seed = secrets.randbelow(SEED_LIMIT) if body.seed is None else body.seed % (MAX_SEED + 1)
        selection = sampling.selection(seed)
        try:
            selection.penalties.check(self._vocab_size)
        except MxconvError as error:
            raise invalid("logit_bias", str(error).removeprefix("logit_bias: ")) from error
        grammar = self._grammar(body, notes)
        stops = [*self._recommended.stop_strings, *body.stop_strings]
        job = Job(self, body, prompts, wanted, selection, sampling, stops, num_logprobs, tool_form=self._form(body))
        if body.min_tokens and grammar is not None:
            notes.append("min_tokens: not held, since a constraint says where an answer ends")
        elif body.min_tokens:
            penalties = replace(selection.penalties, min_new_tokens=body.min_tokens, ends=tuple(job.stop_tokens))
            selection = replace(selection, penalties=penalties)
        return replace(job, selection=replace(selection, constraint=grammar), notes=tuple(notes))

    def _form(self, body: DecodingBody) -> ToolForm | None:
        """The form in which calls are read in the answers to a request; None where they are text alone."""
        if self._template is None or not isinstance(body, ChatBody):
            return None
        form = form_of(self._template.source_for(bool(body.offered)))
        return form if body.offered or form.always_reads else None

    def _grammar(self, body: DecodingBody, notes: list[str]) -> Grammar | None:
        """The grammar that answers follow; raises ApiError where that cannot be followed, or is said twice.

        A format beside functions that may be called asks for a text of that format, or calls; a demanded call wins.
        """
        wanted = dict(body.constraints)
        if isinstance(body, ChatBody) and (form := self._form(body)) is not None:
            several = body.parallel_tool_calls is not False
            if body.demanded and "response_format" in wanted:
                del wanted["response_format"]
                notes.append("response_format: not held, since a call is demanded")
            try:
                if body.demanded:
                    wanted["tool_choice"] = "grammar", form.grammar(body.demanded, several, self.tokenizer)
                elif body.offered and "response_format" in wanted:
                    schema = json.loads(wanted["response_format"][1] or '{"type": "object"}')
                    tools = [tool for tool in body.offered if self._is_held(tool, notes)]
                    calls = form.grammar(tools, several, self.tokenizer) if tools else ""
                    notes += [f"response_format: {each}" for each in unheld_formats(schema)]
                    wanted["response_format"] = "grammar", calls_or_json(calls, schema)
            except ModelError as error:
                raise invalid("tool_choice" if body.demanded else "response_format", str(error)) from error
        for name, (kind, text) in wanted.items():
            if kind == "json_schema":
                notes += [f"{name}: {each}" for each in unheld_formats(parsed(text))]
        if not wanted:
            return None
        name, (kind, text) = next(iter(wanted.items()))
        if others := list(wanted)[1:]:
            raise invalid(name, f"beside {', '.join(others)}; one constraint is required. Leave out the others.")
        try:
            return self._vocabulary.compile(Constraint(kind, text), is_from_stranger=True)
        except MxconvError as error:
            raise invalid(name, str(error)) from error

    def _is_held(self, tool: dict[str, Any], notes: list[str]) -> bool:
        """Whether calls of a function can be written by its schema; a note says of others that they are left out."""
        try:
            parameters_of(tool)
        except ModelError as error:
            notes.append(f"tools: {error} It is not called beside response_format.")
            return False
        return True

    def sampling(self, requested: RequestedSampling) -> SamplingInUse:
        """The sampling of a request: what it leaves out is as generation_config.json recommends."""
        return SamplingInUse.of(requested, self._recommended, CHAT_DEFAULTS)


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
