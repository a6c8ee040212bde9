"""How fast rotary position embeddings rotate, as config.json says it: no arrays, so that a cost needs no NumPy."""

from dataclasses import dataclass

from mxconv.model.fields import Fields

ROPE_TYPES = ("default", "linear", "llama3")


@dataclass(frozen=True)
class RopeParameters:
    """How fast each pair rotates. The last four matter to `linear` (factor) and `llama3` (all) alone."""

    theta: float
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    @classmethod
    def from_fields(cls, config: Fields, max_position_embeddings: int) -> "RopeParameters":
        """Read config.json, in the old style (rope_theta, rope_scaling) or that of transformers 5 (rope_parameters).

        Raises:
            ModelError: a scaling that is not supported, or an impossible value.
        """
        scaling = config.section("rope_scaling" if config.values.get("rope_scaling") else "rope_parameters")
        theta = scaling.number("rope_theta", config.number("rope_theta", 10000.0, at_least=1), at_least=1)
        for fields in (config, scaling):
            if fields.values.get("partial_rotary_factor", 1) not in (1, None):
                fields.reject("partial_rotary_factor", "only 1 is supported", "Use a model without it.")
        if any(isinstance(value, dict) for value in scaling.values.values()):
            key = scaling.name.rpartition(" ")[2]
            config.reject(key, "one set for all layers is supported", "Use a model without it.")
        type_key = "rope_type" if "rope_type" in scaling.values else "type"
        rope_type = scaling.choice(type_key, ROPE_TYPES, default="default")
        if rope_type == "default":
            return cls(theta)
        if rope_type == "linear":
            return cls(theta, rope_type, scaling.number("factor", at_least=1))
        low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
        if not low < high:
            scaling.reject("high_freq_factor", f"more than low_freq_factor, {low:g}, is required")
        original = scaling.size("original_max_position_embeddings", max_position_embeddings)
        return cls(theta, rope_type, scaling.number("factor", at_least=1), low, high, original)
