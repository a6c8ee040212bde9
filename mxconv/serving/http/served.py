"""The model that a server serves: its name, and from bodies to jobs."""

import hashlib
import secrets
import time
from dataclasses import replace

import mxconv
from mxconv.errors import MxconvError
from mxconv.kernels.engine import NUMPY
from mxconv.serving.http.bodies import ChatBody, CompletionBody, DecodingBody
from mxconv.serving.http.errors import ApiError, invalid
from mxconv.serving.http.job import Job, Prompt
from mxconv.serving.http.limits import Limits
from mxconv.serving.http.plain_speed import plain_tokens_per_second
from mxconv.speculation.sampling_in_use import CHAT_DEFAULTS, Asked, SamplingInUse
from mxconv.speculation.selection import MAX_SEED
from mxconv.speculation.text_model import TextModel
from mxconv.text.chat import ChatTemplate

DEFAULT_MAX_TOKENS = 16  # OpenAI's, of completions
SEED_LIMIT = 2**53  # seeds that are drawn here come back whole from any reader of JSON
MOST_PROMPTS = 128


class ServedModel:
    """A text model under a name.

    Args:
        model: what is decoded.
        name: what clients call it.
        limits: on prompts and answers.
    """

    def __init__(self, model: TextModel, name: str, limits: Limits) -> None:
        self.name = name
        self.created = int(time.time())
        self.tokenizer = model.loaded.tokenizer
        self.level_names = [level.name for level in model.loaded.levels]
        self.fingerprint = _fingerprint(model)
        self.num_positions = model.loaded.config.max_position_embeddings
        self._vocab_size = model.loaded.config.vocab_size
        self.plain_tokens_per_second = plain_tokens_per_second(model)
        self._recommended = model.recommended
        self._max_prompt_tokens = min(limits.max_prompt_tokens or self.num_positions, self.num_positions)
        self._max_new_tokens = min(limits.max_new_tokens or self.num_positions, self.num_positions)
        try:
            self._template: ChatTemplate | None = ChatTemplate.from_folder(model.loaded.folder)
        except MxconvError as error:
            self._template, self._no_chat = None, str(error)

    @property
    def can_chat(self) -> bool:
        return self._template is not None

    def check_name(self, name: str | None) -> None:
        """Raises ApiError where a request is meant for another model."""
        if name is not None and name != self.name:
            raise ApiError(
                404, f"model: {name!r} is not here; {self.name!r} is.", param="model", code="model_not_found"
            )

    def completion_job(self, body: CompletionBody) -> Job:
        """Raises ApiError: a field that cannot be served."""
        self.check_name(body.model)
        if body.max_tokens == 0 and not body.echo:
            raise invalid("max_tokens", "0 without echo; at least 1 is required. Ask for more, or for the prompt.")
        wanted = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        prompts = [self._prompt(prompt, bool(body.echo)) for prompt in _prompts(body.prompt)]
        scores = bool(body.echo) and body.logprobs is not None
        return replace(self._job(body, prompts, "prompt", wanted, body.logprobs), scores_prompts=scores)

    def chat_job(self, body: ChatBody) -> Job:
        """Raises ApiError: a field that cannot be served."""
        self.check_name(body.model)
        if body.top_logprobs is not None and not body.logprobs:
            raise invalid("top_logprobs", f'{body.top_logprobs} without logprobs; send "logprobs": true as well.')
        if self._template is None:
            raise invalid("messages", f"{self._no_chat} /v1/completions needs none.", "no_chat_template")
        wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        try:
            text = self._template.render([message.plain for message in body.messages])
            tokens = self.tokenizer.encode(text, add_special_tokens=False)
        except MxconvError as error:
            raise invalid("messages", str(error)) from error
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._job(body, [Prompt(tokens)], "messages", wanted, num_logprobs)

    def _prompt(self, prompt: str | list[int], echo: bool) -> Prompt:
        if isinstance(prompt, str):
            try:
                return Prompt(self.tokenizer.encode(prompt), prompt if echo else "")
            except MxconvError as error:
                raise invalid("prompt", str(error)) from error
        if unknown := next((token for token in prompt if token >= self._vocab_size), None):
            raise invalid("prompt", f"token id {unknown}; ids from 0 to {self._vocab_size - 1} are required.")
        return Prompt(prompt, self.tokenizer.decode(prompt) if echo else "")

    def _job(
        self, body: DecodingBody, prompts: list[Prompt], param: str, wanted: int | None, num_logprobs: int | None
    ) -> Job:
        longest = max(len(prompt.token_ids) for prompt in prompts)
        if not all(prompt.token_ids for prompt in prompts):
            raise invalid(param, "0 tokens; at least one is required. Give a text.")
        if longest > self._max_prompt_tokens:
            raise invalid(
                param,
                f"{longest} tokens; at most {self._max_prompt_tokens} are taken. Shorten it.",
                "context_length_exceeded",
            )
        room = self.num_positions + 1 - longest  # the last token needs no position of its own
        if wanted is None:
            wanted = min(room, self._max_new_tokens)
        if wanted > self._max_new_tokens:
            raise invalid("max_tokens", f"{wanted}; at most {self._max_new_tokens} are given. Ask for fewer.")
        if wanted > room:
            raise invalid(
                "max_tokens",
                f"{wanted} behind {longest} tokens; the model has {self.num_positions} positions. Ask for fewer.",
                "context_length_exceeded",
            )
        sampling = self.sampling(body.asked)
        selection = sampling.selection(
            secrets.randbelow(SEED_LIMIT) if body.seed is None else body.seed % (MAX_SEED + 1)
        )
        try:
            selection.penalties.check(self._vocab_size)
        except MxconvError as error:
            raise invalid("logit_bias", str(error).removeprefix("logit_bias: ")) from error
        return Job(
            prompts,
            body.num_choices,
            wanted,
            selection,
            sampling,
            [*self._recommended.stop_strings, *body.stop_strings],
            num_logprobs,
            body.wants_trace,
        )

    def sampling(self, asked: Asked) -> SamplingInUse:
        """How tokens are chosen for a request: what it does not say is as generation_config.json recommends."""
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
