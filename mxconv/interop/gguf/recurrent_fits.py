"""What mixers with a state may have that llama.cpp's do not."""

import math
from collections.abc import Iterator

from mxconv.arch.config import ModelConfig
from mxconv.arch.gguf.parts import states
from mxconv.arch.state_mixers import GatedDeltaNet, Mamba2


def state_differences(config: ModelConfig) -> Iterator[str]:
    """In words."""
    for mixer in states(config):
        ends = (mixer.inputs, mixer.output) if not isinstance(mixer, GatedDeltaNet) else (mixer.output,)
        for linear in ends:
            if linear.has_bias:
                yield f"a bias of {linear.name}"
        if mixer.convolution.has_bias != isinstance(mixer, Mamba2):
            yield f"{mixer.convolution.name} {'with' if mixer.convolution.has_bias else 'without'} a bias"
        if isinstance(mixer, GatedDeltaNet) and mixer.key_dim != mixer.value_dim:
            yield f"value heads of {mixer.value_dim} numbers beside key heads of {mixer.key_dim}"
        if isinstance(mixer, Mamba2) and mixer.step_limits != (0.0, math.inf):
            yield f"time_step_limit {list(mixer.step_limits)}"
        if isinstance(mixer, Mamba2) and mixer.activation != "silu":
            yield f"hidden_act {mixer.activation}"
        if isinstance(mixer, Mamba2) and config.attentions and mixer.size != 2 * config.hidden_size:
            yield f"a state space of {mixer.size} numbers, not twice hidden_size, {config.hidden_size}"
