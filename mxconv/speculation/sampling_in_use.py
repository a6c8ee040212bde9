"""How tokens are chosen, parameter by parameter: what was asked for, else what the model recommends, else a default.

A temperature that is asked for comes without the randomness that others would add: what then is neither asked for nor
recommended is off. A model that recommends sampling and leaves values out has transformers' defaults for them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from mxconv.errors import ModelError
from mxconv.speculation.selection import Accept, Selection
from mxconv.text.distribution import Sampling
from mxconv.text.generation_config import GenerationConfig
from mxconv.text.penalties import Penalties

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
