"""MTP modules of checkpoints: three ways to name the same parts."""

from typing import Any

from mxconv.arch.description import LayerParts, Mtp
from mxconv.arch.elements import Linear
from mxconv.arch.families.keys import MOST_LAYERS, Keys

# names of the embedding's norm, the state's, the projection and the last norm
NEXTN = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
BESIDE = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
MTP_LAYERS = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")


def nextn(keys: Keys, layer: LayerParts) -> Mtp | None:
    """Describe those of DeepSeek-V3 and GLM-4.5: after the layers, numbered on (`num_nextn_predict_layers`).

    Source:
        deepseek_mtp.py and glm4_moe_mtp.py of vLLM; MtpModel of transformers 5.23.
    """
    first = keys.num_hidden_layers
    modules = [f"model.layers.{first + module}." for module in range(_num_modules(keys, default=1))]
    return _mtp(keys, modules, NEXTN, layer, copies=("embed_tokens.weight", "shared_head.head.weight"))


def beside(keys: Keys, layer: LayerParts) -> Mtp | None:
    """Describe the one of Qwen3-Next and Qwen3.5: under `mtp.`; none where `mtp_num_hidden_layers` is 0.

    Source:
        qwen3_next_mtp.py and qwen3_5_mtp.py of vLLM.
    """
    modules = ["mtp."] if _num_modules(keys, default=1, key="mtp_num_hidden_layers") else []
    return _mtp(keys, modules, BESIDE, layer, layer_prefix="mtp.layers.0.")


def mtp_layers(keys: Keys, layer: LayerParts) -> Mtp | None:
    """Describe those of MiMo: `model.mtp_layers`; the state comes first. `num_nextn_predict_layers` says how many.

    Source:
        mimo_mtp.py of vLLM.
    """
    modules = [f"model.mtp_layers.{module}." for module in range(_num_modules(keys, default=0))]
    return _mtp(keys, modules, MTP_LAYERS, layer, state_first=True)


def _num_modules(keys: Keys, default: int, key: str = "num_nextn_predict_layers") -> int:
    """How many a config.json says that there are; `default` where it does not say."""
    count = keys.fields.values.get(key, default) or 0
    if type(count) is not int or not 0 <= count <= MOST_LAYERS:
        keys.fields.reject(key, f"an integer from 0 to {MOST_LAYERS} is required")
    return count


def _mtp(
    keys: Keys,
    modules: list[str],
    names: tuple[str, str, str, str],
    layer: LayerParts,
    layer_prefix: str | None = None,
    **more: Any,
) -> Mtp | None:
    """The first of the modules, by the family's names and norms; None where there are none."""
    if not modules:
        return None
    embedding_norm, state_norm, projection, final_norm = (f"{modules[0]}{name}" for name in names)
    return Mtp(
        modules=tuple(modules),
        layer=layer,
        layer_prefix=layer_prefix or modules[0],
        embedding_norm=keys.norm(embedding_norm),
        state_norm=keys.norm(state_norm),
        projection=Linear(projection),
        final_norm=keys.norm(final_norm),
        **more,
    )
