"""What is said of a model that no family describes: which, what it needs that mxconv lacks, and where the guide is."""

from collections.abc import Mapping
from typing import NoReturn

from mxconv.arch.fields import Fields, quote
from mxconv.errors import ModelError

GUIDE = 'CONTRIBUTING.md, "Add a family"'

# keys by which a config.json gives away a part that no description has yet
HINTS: Mapping[str, tuple[str, ...]] = {
    "state space layers of the first Mamba": ("mamba_dt_rank", "time_step_rank"),
    "rotations of several axes": ("mrope_section",),
    "an encoder": ("encoder_layers", "num_encoder_layers", "is_encoder_decoder"),
    "attention in both directions": ("type_vocab_size",),
}


def missing_parts(fields: Fields) -> tuple[str, ...]:
    """The parts that a config.json gives away and no description has, in words; a text tower's too."""
    text = fields.values.get("text_config")
    sections = [fields.values, *([text] if isinstance(text, dict) else [])]
    return tuple(part for part, keys in HINTS.items() if any(section.get(key) for section in sections for key in keys))


def refuse(fields: Fields, families: tuple[str, ...]) -> NoReturn:
    """Raise a ModelError that names the family, what is missing and where the guide is."""
    kind = fields.values.get("model_type")
    if not isinstance(kind, str):
        fields.reject("model_type", f"mxconv supports {', '.join(families)}", "Use a model of such a kind.")
    parts = missing_parts(fields)
    needs = f"It needs {', '.join(parts)}, which mxconv does not have. " if parts else ""
    raise ModelError(
        f"{fields.name}: model_type is {quote(kind)}; mxconv runs {', '.join(families)}. {needs}"
        f"Such a model can be quantized, inspected and verified; how to add a family says {GUIDE}."
    )
