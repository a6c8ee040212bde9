"""MiMo: Qwen 2's layers, and one for multi-token prediction."""

from dataclasses import replace

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.mtp_modules import mtp_layers
from mxconv.arch.families.qwen import qwen2
from mxconv.arch.fields import Fields


def mimo(fields: Fields) -> ModelConfig:
    """`model_type` mimo: MiMo-7B, whose configuration is Qwen 2's."""
    model = qwen2(fields)
    return replace(model, mtp=mtp_layers(Keys.read(fields, max_positions=32768), model.layers[0]))
