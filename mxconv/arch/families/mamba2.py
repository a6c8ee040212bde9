"""Mamba-2: a state space in every layer, and nothing else."""

import math

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import LayerParts
from mxconv.arch.elements import Activation, Convolution, Linear, Mamba2
from mxconv.arch.families.keys import Keys
from mxconv.arch.fields import Fields

POSITIONS = 1 << 20  # none are numbered; a bound that texts stay below
INFINITY = {"__float__": "Infinity"}  # as transformers writes it


def mamba2(fields: Fields) -> ModelConfig:
    """`model_type` mamba2."""
    known = Keys.ignoring(fields, "num_key_value_heads", "head_dim", "max_position_embeddings")
    heads = {"num_attention_heads": fields.size("num_heads", 128)}
    keys = Keys.read(Fields({**known.values, **heads}, fields.name), POSITIONS, 1e-5, "layer_norm_epsilon", 2)
    sizes = {
        "num_heads": fields.size("num_heads", 128),
        "head_dim": fields.size("head_dim", 64),
        "state_size": fields.size("state_size", 128),
        "num_groups": fields.size("n_groups", 8),
        "kernel_size": fields.size("conv_kernel", 4),
    }
    mixer = state_space(
        keys,
        "mixer.",
        sizes,
        bias=fields.flag("use_bias", False),
        convolution_bias=fields.flag("use_conv_bias", True),
        activation=keys.activation("hidden_act", "silu"),
    )
    layer = LayerParts(mixer, None, before_mixer=keys.norm("norm"))
    return keys.model(
        [layer] * keys.num_hidden_layers,
        embedding="backbone.embeddings.weight",
        layer_prefix="backbone.layers",
        final_norm=keys.norm("backbone.norm_f"),
    )


def state_space(
    keys: Keys, prefix: str, sizes: dict[str, int], bias: bool, convolution_bias: bool, activation: Activation
) -> Mamba2:
    """The mixer, under the names that Mamba-2 gave its tensors.

    Args:
        sizes: num_heads, head_dim, state_size, num_groups and kernel_size.

    Raises:
        ModelError: heads that groups do not divide, or limits of time steps that are none.
    """
    num_heads, num_groups = sizes["num_heads"], sizes["num_groups"]
    if num_heads % num_groups:
        key = "n_groups" if "n_groups" in keys.fields.values else "mamba_n_groups"
        keys.fields.reject(key, f"a divisor of the {num_heads} heads is required")
    return Mamba2(
        num_heads=num_heads,
        head_dim=sizes["head_dim"],
        state_size=sizes["state_size"],
        num_groups=num_groups,
        convolution=Convolution(f"{prefix}conv1d", sizes["kernel_size"], convolution_bias),
        activation=activation,
        inputs=Linear(f"{prefix}in_proj", bias),
        step_bias=f"{prefix}dt_bias",
        step_limits=_limits(keys.fields),
        decay_log=f"{prefix}A_log",
        skip=f"{prefix}D",
        norm=keys.norm(f"{prefix}norm"),
        norm_groups=num_groups,
        output=Linear(f"{prefix}out_proj", bias),
    )


def _limits(fields: Fields) -> tuple[float, float]:
    """`time_step_limit`; null is none."""
    limits = fields.values.get("time_step_limit")
    if limits is None:
        return 0.0, math.inf
    numbers = [math.inf if each == INFINITY else each for each in limits] if isinstance(limits, list) else []
    if (
        len(numbers) != 2
        or not all(type(each) in (int, float) for each in numbers)
        or not 0 <= numbers[0] <= numbers[1]
    ):
        fields.reject("time_step_limit", "two numbers from 0 on, the smaller first, are required")
    return float(numbers[0]), float(numbers[1])
