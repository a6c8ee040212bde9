"""How fast rotary position embeddings rotate, as config.json says it: no arrays, so that a cost needs no NumPy."""

import math
from dataclasses import dataclass, replace

from mxconv.arch.fields import Fields

ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional")
MOST_FACTORS = 4096  # pairs of a head, that a list may speak of


@dataclass(frozen=True)
class RopeParameters:
    """How fast each pair rotates."""

    theta: float  # pair j of n rotates by theta^(-j / n) radians a position
    # what is done to that. `linear`, `llama3`, `yarn` and `proportional` go by `factor`, `llama3` by the three after it
    # too, `yarn` by the last of them
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    share: float = 1.0  # of a head's values that rotate, the first ones
    is_interleaved: bool = False  # whether neighbours are pairs, or values half of those that rotate apart
    multiplier: float = 1.0  # of cosines and sines (`attention_factor`)
    # beta_fast and beta_slow: of `yarn`: turns in the original context from which on a pair keeps its speed, and up to
    # which it is divided by `factor`
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncates: bool = True  # whether the pairs that make these turns are rounded outwards
    factors: tuple[float, ...] = ()  # of `longrope`: what each pair's speed is divided by

    @classmethod
    def from_fields(
        cls, config: Fields, max_position_embeddings: int, theta: float = 10000.0, share: float | None = None
    ) -> "RopeParameters":
        """Read config.json, in the old style (rope_theta, rope_scaling) or that of transformers 5 (rope_parameters).

        Args:
            config: the file; where it does not say, `theta` and `share` count.
            share: of a family whose heads may rotate in part; None is of one whose heads do not.

        Raises:
            ModelError: a scaling that is not supported, or an impossible value.
        """
        scaling = scaling_of(config)
        if any(isinstance(value, dict) for value in scaling.values.values()):
            key = scaling.name.rpartition(" ")[2]
            config.reject(key, "one set for all layers is supported", "Use a model without it.")
        return cls.from_section(scaling, config, max_position_embeddings, theta, share)

    @classmethod
    def from_section(
        cls, scaling: Fields, config: Fields, max_position_embeddings: int, theta: float, share: float | None = None
    ) -> "RopeParameters":
        """Read one set of parameters; what it lacks may stand in config.json itself."""
        theta = _holder(scaling, config, "rope_theta").number("rope_theta", theta, at_least=1)
        type_key = "rope_type" if "rope_type" in scaling.values else "type"
        rope_type = scaling.choice(type_key, ROPE_TYPES, default="default")
        made = cls(theta, rope_type)
        if share is not None or rope_type != "default":  # others ignore the key, as transformers does
            made = replace(made, share=_share(scaling, config, share, share is None and rope_type != "proportional"))
        if rope_type == "default":
            return made
        if rope_type == "dynamic":  # it begins beyond the positions that the model has, where mxconv stops
            return replace(made, rope_type="default")
        if rope_type == "proportional":
            return replace(made, factor=scaling.number("factor", 1.0, at_least=1))
        key = "original_max_position_embeddings"
        original = scaling.size(key, config.size(key, max_position_embeddings))
        if rope_type == "longrope":
            return _longrope(replace(made, original_max_position_embeddings=original), scaling, max_position_embeddings)
        made = replace(made, factor=scaling.number("factor", at_least=1), original_max_position_embeddings=original)
        if rope_type == "yarn":
            return _yarn(made, scaling)
        if rope_type == "llama3":
            low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
            if not low < high:
                scaling.reject("high_freq_factor", f"more than low_freq_factor, {low:g}, is required")
            made = replace(made, low_freq_factor=low, high_freq_factor=high)
        return made

    def rotary_dim(self, head_dim: int) -> int:
        """How many of a head's values rotate; where that is odd, its neighbour does too."""
        return head_dim if self.rope_type == "proportional" else int(head_dim * self.share)


def scaling_of(config: Fields) -> Fields:
    """The section of config.json about rotations, in the old style or that of transformers 5."""
    return config.section("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")


def _share(scaling: Fields, config: Fields, default: float | None, is_whole: bool) -> float:
    key = "partial_rotary_factor"
    holder = _holder(scaling, config, key)
    share = holder.number(key, 1.0 if default is None else default)
    if share > 1:
        holder.reject(key, "at most 1 is required")
    if share < 1 and is_whole:
        holder.reject(key, "only 1 is supported", "Use a model without it.")
    return share


def _holder(scaling: Fields, config: Fields, key: str) -> Fields:
    """The object that has a key: config.json itself where its section lacks it."""
    return config if scaling.values.get(key) is None else scaling


def _yarn(made: RopeParameters, scaling: Fields) -> RopeParameters:
    multiplier = _grown(made.factor, 1.0)
    if scaling.values.get("mscale") and scaling.values.get("mscale_all_dim"):
        own, usual = scaling.number("mscale"), scaling.number("mscale_all_dim")
        multiplier = _grown(made.factor, own) / _grown(made.factor, usual)
    return replace(
        made,
        multiplier=scaling.number("attention_factor", multiplier),
        beta_fast=scaling.number("beta_fast", 32.0),
        beta_slow=scaling.number("beta_slow", 1.0),
        truncates=scaling.flag("truncate", True),
    )


def _grown(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(made: RopeParameters, scaling: Fields, max_position_embeddings: int) -> RopeParameters:
    """Add the factors of the short context, within which mxconv runs the model."""
    factors = scaling.values.get("short_factor")
    if (
        not isinstance(factors, list)
        or not 0 < len(factors) <= MOST_FACTORS
        or not all(type(each) in (int, float) and 0 < each < math.inf for each in factors)
    ):
        scaling.reject("short_factor", "a list of numbers above 0, one a pair of values that rotate, is required")
    original = made.original_max_position_embeddings
    factor = scaling.number("factor", max_position_embeddings / original)
    grown = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 and original > 1 else 1.0
    return replace(made, factors=tuple(map(float, factors)), multiplier=scaling.number("attention_factor", grown))
