"""Where checkpoints keep their MTP modules: three ways to name the same parts."""

from collections.abc import Callable

from mxconv.arch.description import LayerParts, Linear, Norm
from mxconv.arch.families.keys import MOST_LAYERS, Keys
from mxconv.arch.mtp import Mtp


def nextn(keys: Keys, layer: LayerParts) -> Mtp | None:
    """As DeepSeek-V3 and GLM-4.5 have them: behind the layers, numbered on; `num_nextn_predict_layers` says how many.

    Source:
        deepseek_mtp.py and glm4_moe_mtp.py of vLLM; MtpModel of transformers 5.23.
    """
    first = keys.num_hidden_layers
    modules = tuple(f"model.layers.{first + module}." for module in range(num_modules(keys, default=1)))
    if not modules:
        return None
    name = modules[0]
    return Mtp(
        modules=modules,
        layer=layer,
        layer_prefix=name,
        embedding_norm=keys.norm(f"{name}enorm"),
        state_norm=keys.norm(f"{name}hnorm"),
        projection=Linear(f"{name}eh_proj"),
        final_norm=keys.norm(f"{name}shared_head.norm"),
        copies=("embed_tokens.weight", "shared_head.head.weight"),
    )


def beside(keys: Keys, norm: Callable[[str], Norm], layer: LayerParts) -> Mtp | None:
    """As Qwen3-Next and Qwen3.5 have one: under `mtp.`; none where `mtp_num_hidden_layers` is 0.

    Args:
        keys: of the model.
        norm: makes one of the family's norms.
        layer: its parts.

    Source:
        qwen3_next_mtp.py and qwen3_5_mtp.py of vLLM.
    """
    if num_modules(keys, default=1, key="mtp_num_hidden_layers") == 0:
        return None
    return Mtp(
        modules=("mtp.",),
        layer=layer,
        layer_prefix="mtp.layers.0.",
        embedding_norm=norm("mtp.pre_fc_norm_embedding"),
        state_norm=norm("mtp.pre_fc_norm_hidden"),
        projection=Linear("mtp.fc"),
        final_norm=norm("mtp.norm"),
    )


def mtp_layers(keys: Keys, layer: LayerParts) -> Mtp | None:
    """As MiMo has them: `model.mtp_layers`; the state comes first. `num_nextn_predict_layers` says how many.

    Source:
        mimo_mtp.py of vLLM.
    """
    modules = tuple(f"model.mtp_layers.{module}." for module in range(num_modules(keys, default=0)))
    if not modules:
        return None
    name = modules[0]
    return Mtp(
        modules=modules,
        layer=layer,
        layer_prefix=name,
        embedding_norm=keys.norm(f"{name}token_layernorm"),
        state_norm=keys.norm(f"{name}hidden_layernorm"),
        projection=Linear(f"{name}input_proj"),
        final_norm=keys.norm(f"{name}final_layernorm"),
        state_first=True,
    )


def num_modules(keys: Keys, default: int, key: str = "num_nextn_predict_layers") -> int:
    """How many a config.json says that there are; `default` where it does not say.

    Raises:
        ModelError: it is no number of layers.
    """
    count = keys.fields.values.get(key, default) or 0
    if type(count) is not int or not 0 <= count <= MOST_LAYERS:
        keys.fields.reject(key, f"an integer from 0 to {MOST_LAYERS} is required")
    return count
