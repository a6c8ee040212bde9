"""How tokens are chosen: what was asked for, else what the model recommends, else a default; and the request of a text.

A model recommends in the generation_config.json beside its weights. One that recommends sampling and leaves values out
has transformers' defaults for them. A temperature that is asked for comes without the randomness that others would
add: what then is neither asked for nor recommended is off.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from mxconv.arch.fields import Fields
from mxconv.errors import ModelError
from mxconv.speculation.acceptance import Acceptance, CoupledAcceptance, GreedyAcceptance, RejectionAcceptance
from mxconv.text.distribution import LEAST_REPETITION, MOST_REPETITION, Penalties, Sampling, is_number

if TYPE_CHECKING:
    from mxconv.text.constraint import Grammar

MAX_SEED = 2**64 - 1
NO_PENALTIES = Penalties()
Accept = Literal["coupled", "rejection", "block"]
RULES: tuple[Accept, ...] = get_args(Accept)


@dataclass(frozen=True)
class Selection:
    """How tokens are chosen. Raises ModelError for a rule that there is not, or a seed of more than 64 bits."""

    sampling: Sampling | None = None  # greedy without
    accept: Accept = "coupled"  # how drafts are verified when tokens are drawn at random
    seed: int = 0  # of all draws
    penalties: Penalties = NO_PENALTIES  # what is held against tokens before they are chosen, greedily too
    constraint: "Grammar | None" = None  # what the answer must look like

    def __post_init__(self) -> None:
        if not 0 <= self.seed <= MAX_SEED:
            raise ModelError(f"seed: {self.seed}; a number from 0 to {MAX_SEED} is required. Choose another.")
        if self.accept not in RULES:
            raise ModelError(f"accept: {self.accept!r}; one of {', '.join(RULES)} is required. Choose one.")

    def acceptance(self, num_prompt_tokens: int = 0) -> Acceptance:
        """The rule, fresh for a run after a prompt of so many tokens."""
        rule, grammar = self._rule(), self.constraint
        if not self.penalties.is_neutral or grammar is not None:
            from mxconv.speculation.path_rules import PathMask, PathPenalties, PathRules

            penalties = None if self.penalties.is_neutral else PathPenalties(self.penalties, num_prompt_tokens)
            mask = None if grammar is None else PathMask(grammar.matcher(), grammar.ends, num_prompt_tokens)
            rule.rules = PathRules(penalties, mask)
        return rule

    def _rule(self) -> Acceptance:
        if self.sampling is None:
            return GreedyAcceptance()
        if self.accept == "block":
            from mxconv.speculation.block_verification import BlockAcceptance

            return BlockAcceptance(self.sampling, self.seed)
        rule = RejectionAcceptance if self.accept == "rejection" else CoupledAcceptance
        return rule(self.sampling, self.seed)


GREEDY = Selection()


@dataclass(frozen=True)
class Request:
    """A prompt, and how it is to go on.

    Args:
        prompt: token ids, at least one.
        max_new_tokens: at least one.
        stop_tokens: ids that end the text; the one that does is part of it.
        selection: how tokens are chosen.
        uses_drafts: whether drafts propose tokens; without them the same text takes a pass of the target a token.
    """

    prompt: list[int]
    max_new_tokens: int
    stop_tokens: Collection[int] = ()
    selection: Selection = GREEDY
    uses_drafts: bool = True

    def acceptance(self) -> Acceptance:
        """The rule, fresh for the text."""
        return self.selection.acceptance(len(self.prompt))


@dataclass(frozen=True)
class GenerationConfig:
    """Recommendations of the makers of a model, None where the file says nothing; see `Sampling` and `Penalties`.

    The ids of tokens that end a text are the tokenizer's business.
    """

    do_sample: bool | None = None  # False decodes greedily, whatever the next four say
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_strings: tuple[str, ...] = ()  # texts that end a generation

    @classmethod
    def from_folder(cls, folder: Path) -> "GenerationConfig":
        """Read generation_config.json; a folder without one recommends nothing.

        Raises:
            CheckpointError: the file is no JSON object.
            ModelError: a value is none that can be.
        """
        path = folder / "generation_config.json"
        if not path.is_file():
            return cls()
        fields = Fields.read(path)
        do_sample = None if fields.values.get("do_sample") is None else fields.flag("do_sample", default=False)
        # a temperature of 0 is written by some to say that nothing is drawn
        heat = "above 0" if do_sample else "from 0 on"
        repetition = f"a number from {LEAST_REPETITION} to {MOST_REPETITION:g}"
        rules: dict[str, tuple[str, Callable[[float], bool]]] = {
            "temperature": (f"a finite number {heat}", lambda t: 0 <= t < inf and (t > 0 or not do_sample)),
            "top_k": ("a whole number from 0 on", lambda k: type(k) is int and k >= 0),
            "top_p": ("a finite number from 0 to 1", lambda p: 0 <= p <= 1),
            "min_p": ("a finite number from 0 to 1", lambda p: 0 <= p <= 1),
            "repetition_penalty": (repetition, lambda r: LEAST_REPETITION <= r <= MOST_REPETITION),
        }
        numbers: dict[str, Any] = {}
        for key, (required, fits) in rules.items():
            if (value := fields.values.get(key)) is None:
                continue
            if not (is_number(value) and fits(value)):
                fields.reject(key, f"{required}, or null, is required")
            numbers[key] = value if key == "top_k" else float(value)
        stops = fields.values.get("stop_strings")
        texts = [] if stops is None else stops if isinstance(stops, list) else [stops]
        if not all(isinstance(text, str) and text for text in texts):
            fields.reject("stop_strings", "a text, a list of texts or null is required, none of them empty")
        return cls(do_sample, **numbers, stop_strings=tuple(texts))

    @property
    def samples(self) -> bool:
        """Whether the file wants tokens drawn: it says so, or it names a temperature, top_k, top_p or min_p alone.

        vLLM takes such values as they are, transformers leaves them aside; nobody writes them to be left aside.
        """
        if self.do_sample is not None:
            return self.do_sample
        named = [value for value in (self.temperature, self.top_k, self.top_p, self.min_p) if value is not None]
        return bool(named) and self.temperature != 0

    @property
    def parameters(self) -> dict[str, Any]:
        """The recommendations by the names of the file. A file that wants no draws recommends a temperature of 0."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        values = {name: getattr(self, name) for name in names}
        if not self.samples:
            values["temperature"] = 0.0 if self.do_sample is False or self.temperature == 0 else None
        return {name: value for name, value in values.items() if value is not None}


Origin = Literal["request", "generation_config.json", "default"]

OFF: Mapping[str, Any] = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
}
GREEDY_DEFAULTS: Mapping[str, Any] = OFF
CHAT_DEFAULTS: Mapping[str, Any] = {**OFF, "temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
TRANSFORMERS_DEFAULTS: Mapping[str, Any] = {**OFF, "temperature": 1.0, "top_k": 50}
OF_DRAWS = ("top_k", "top_p", "min_p")  # of no meaning without a temperature


class RequestedSampling(TypedDict, total=False):
    """What somebody asks for; what is left out or None is left to the model and the defaults."""

    temperature: float | None  # 0 takes the likeliest token
    top_k: int | None  # tokens to draw from; 0 for all
    top_p: float | None  # share of the tokens to draw from; 1 for all
    min_p: float | None  # least chance of a token, in those of the likeliest; 0 for all
    repetition_penalty: float | None  # see `Penalties`, like the next three
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None  # by token id


@dataclass(frozen=True)
class SamplingInUse:
    """The values of every parameter of `OFF`, and where each comes from."""

    values: Mapping[str, Any]
    origins: Mapping[str, Origin]

    @classmethod
    def of(
        cls, requested: RequestedSampling, recommended: GenerationConfig, defaults: Mapping[str, Any]
    ) -> "SamplingInUse":
        """Decide by a request first, then by the model's generation_config.json, then by defaults.

        Raises:
            ModelError: a value outside of its limits.
        """
        given = {name: value for name, value in requested.items() if name in OFF and value is not None}
        in_file = recommended.parameters
        if "temperature" in given:
            defaults = OFF
        elif recommended.samples:
            defaults = TRANSFORMERS_DEFAULTS
        values: dict[str, Any] = {}
        origins: dict[str, Origin] = {}
        for name, default in defaults.items():
            if name in given:
                values[name], origins[name] = given[name], "request"
            elif name in in_file:
                values[name], origins[name] = in_file[name], "generation_config.json"
            else:
                values[name], origins[name] = default, "default"
        made = cls(values, origins)
        made.selection()  # raises at once where a value is wrong
        return made

    def selection(self, seed: int = 0, accept: Accept = "coupled") -> Selection:
        """The same as the decoder takes it."""
        values = self.values
        sampling = Sampling(values["temperature"] or 1.0, values["top_k"], values["top_p"], values["min_p"])
        penalties = Penalties(
            values["repetition_penalty"],
            values["presence_penalty"],
            values["frequency_penalty"],
            _pairs(values["logit_bias"]),
        )
        return Selection(sampling if values["temperature"] else None, accept, seed, penalties)

    @property
    def members(self) -> dict[str, Any]:
        """As JSON: the values that matter, and `from`, the origin of each."""
        is_drawn = bool(self.values["temperature"])
        shown = {
            name: value
            for name, value in self.values.items()
            if (is_drawn or name not in OF_DRAWS) and (value or name != "logit_bias")
        }
        return {**shown, "from": {name: self.origins[name] for name in shown}}

    @property
    def summary(self) -> str:
        """One line with what is on and matters, by origin."""
        by_origin: dict[str, list[str]] = {}
        members = self.members
        for name, origin in members["from"].items():
            value = members[name]
            if name == "temperature" and not value:
                by_origin.setdefault(origin, []).append("greedy")
            elif name == "logit_bias":
                by_origin.setdefault(origin, []).append(f"{name} for {len(value)} tokens")
            elif name == "temperature" or value != OFF[name]:
                by_origin.setdefault(origin, []).append(f"{name} {value:g}")
        return "; ".join(f"{', '.join(named)} ({origin})" for origin, named in by_origin.items())

    @property
    def is_from_file(self) -> bool:
        """Whether the model's recommendation decides anything."""
        return "generation_config.json" in self.members["from"].values()


def _pairs(biases: Mapping[int, float]) -> tuple[tuple[int, float], ...]:
    if not isinstance(biases, Mapping) or not all(type(token) is int for token in biases):
        raise ModelError(f"logit_bias: {biases!r}; numbers by token id are required. Change it.")
    return tuple(sorted(biases.items()))
