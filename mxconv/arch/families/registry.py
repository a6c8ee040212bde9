"""Every family that mxconv runs, by the `model_type` of its config.json."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.deepseek_v3 import deepseek_v3, glm4, glm4_moe
from mxconv.arch.families.gemma import gemma, gemma2, gemma3
from mxconv.arch.families.gemma4 import gemma4
from mxconv.arch.families.gpt import gpt2, gpt_neox, starcoder2
from mxconv.arch.families.gpt_oss import gpt_oss
from mxconv.arch.families.granite import granite, granite_hybrid, granitemoe
from mxconv.arch.families.lfm2 import lfm2
from mxconv.arch.families.llama import (
    arcee,
    cohere2,
    exaone4,
    hunyuan_v1_dense,
    llama,
    ministral3,
    mistral,
    mixtral,
    phi3,
    seed_oss,
    smollm3,
)
from mxconv.arch.families.llama4 import llama4
from mxconv.arch.families.mamba2 import mamba2
from mxconv.arch.families.olmo import olmo2, olmo3, olmoe
from mxconv.arch.families.qwen import mimo, qwen2, qwen2_moe, qwen3, qwen3_moe
from mxconv.arch.families.qwen3_5 import qwen3_5, qwen3_5_moe, qwen3_next
from mxconv.arch.fields import Fields, quote
from mxconv.errors import ModelError

FAMILIES: Mapping[str, Callable[[Fields], ModelConfig]] = {
    "arcee": arcee,
    "cohere2": cohere2,
    "deepseek_v3": deepseek_v3,
    "exaone4": exaone4,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gemma4_text": gemma4,
    "glm4": glm4,
    "glm4_moe": glm4_moe,
    "gpt2": gpt2,
    "gpt_neox": gpt_neox,
    "gpt_oss": gpt_oss,
    "granite": granite,
    "granitemoe": granitemoe,
    "granitemoehybrid": granite_hybrid,
    "hunyuan_v1_dense": hunyuan_v1_dense,
    "lfm2": lfm2,
    "llama": llama,
    "llama4_text": llama4,
    "mamba2": mamba2,
    "mimo": mimo,
    "ministral3": ministral3,
    "mistral": mistral,
    "mixtral": mixtral,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "olmoe": olmoe,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen2_moe": qwen2_moe,
    "qwen3": qwen3,
    "qwen3_5_moe_text": qwen3_5_moe,
    "qwen3_5_text": qwen3_5,
    "qwen3_moe": qwen3_moe,
    "qwen3_next": qwen3_next,
    "seed_oss": seed_oss,
    "smollm3": smollm3,
    "starcoder2": starcoder2,
}

# checkpoints of several towers, whose text is one of these under `text_config`
TOWERS = ("gemma3", "gemma4", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe")
TOWER_NAMES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("lm_head.", "lm_head."),
    ("mtp.", "mtp."),
)

GUIDE = 'CONTRIBUTING.md, "Add a family"'

# keys by which a config.json gives away a part that no description has yet
HINTS: Mapping[str, tuple[str, ...]] = {
    "state space layers of the first Mamba": ("mamba_dt_rank", "time_step_rank"),
    "rotations of several axes": ("mrope_section",),
    "an encoder": ("encoder_layers", "num_encoder_layers", "is_encoder_decoder"),
    "attention in both directions": ("type_vocab_size",),
}


def describe(fields: Fields) -> ModelConfig:
    """Describe the model of a config.json. Raises ModelError where the family is not known, or a key is missing,
    ill-typed, or asks for what mxconv does not have."""
    kind = fields.values.get("model_type")
    if kind in TOWERS:
        text = fields.section("text_config")
        if "tie_word_embeddings" in fields.values:
            text = Fields({**text.values, "tie_word_embeddings": fields.values["tie_word_embeddings"]}, text.name)
        return replace(_family(text)(text), towers=TOWER_NAMES)
    return _family(fields)(fields)


def describe_values(values: Mapping[str, object]) -> ModelConfig:
    """The same of the parsed content of a config.json."""
    return describe(Fields(values, "config.json"))


def describe_file(path: Path) -> ModelConfig:
    """The same of a config.json.

    Raises:
        CheckpointError: the file is missing, or no JSON object.
        ModelError: as `describe`.
    """
    return describe(Fields.read(path))


def _family(fields: Fields) -> Callable[[Fields], ModelConfig]:
    """The function of a `model_type`, or an error that says what an unknown model needs and where the guide is."""
    kind, known = fields.values.get("model_type"), ", ".join((*FAMILIES, *TOWERS))
    if not isinstance(kind, str):
        fields.reject("model_type", f"mxconv supports {known}", "Use a model of such a kind.")
    if kind in FAMILIES:
        return FAMILIES[kind]
    text = fields.values.get("text_config")
    sections = [fields.values, *([text] if isinstance(text, dict) else [])]
    parts = [part for part, keys in HINTS.items() if any(section.get(key) for section in sections for key in keys)]
    needs = f"It needs {', '.join(parts)}, which mxconv does not have. " if parts else ""
    raise ModelError(
        f"{fields.name}: model_type is {quote(kind)}; mxconv runs {known}. {needs}"
        f"Such a model can be quantized, inspected and verified; how to add a family says {GUIDE}."
    )
