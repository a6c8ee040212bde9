"""The keys of a GGUF file that say what a state is made of, and which layers have one."""

from typing import TYPE_CHECKING

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention
from mxconv.arch.gguf.architecture import Architecture
from mxconv.arch.gguf.parts import states
from mxconv.arch.state_mixers import GatedDeltaNet, Mamba2, ShortConvolution

if TYPE_CHECKING:
    from gguf import GGUFWriter


def lists_states(architecture: Architecture) -> bool:
    """Whether a list names the layers that have a state; otherwise they are those without keys."""
    return architecture.state in ("delta_net", "fused_delta_net")


def add_states(writer: "GGUFWriter", config: ModelConfig, architecture: Architecture) -> None:
    """Hand the keys to a writer."""
    if not (mixers := states(config)):
        return
    mixer, kernel_size = mixers[0], mixers[0].state.kernel_size
    if isinstance(mixer, ShortConvolution):
        writer.add_shortconv_l_cache(kernel_size)
        return
    writer.add_ssm_conv_kernel(kernel_size)
    if isinstance(mixer, GatedDeltaNet):
        sizes = mixer.num_values, mixer.key_dim, mixer.num_value_heads, mixer.num_key_heads
    else:
        sizes = mixer.size, mixer.state_size, mixer.num_heads, mixer.num_groups
    adders = (
        writer.add_ssm_inner_size,
        writer.add_ssm_state_size,
        writer.add_ssm_time_step_rank,  # llama.cpp's name for the number of heads
        writer.add_ssm_group_count,
    )
    for add, size in zip(adders, sizes, strict=True):
        add(size)
    if lists_states(architecture):
        has_state = [not isinstance(layer.mixer, Attention) for layer in config.layers]
        writer.add_array(f"{architecture.name}.attention.recurrent_layers", has_state)
    if isinstance(mixer, Mamba2) and any(isinstance(layer.mixer, Attention) for layer in config.layers):
        writer.add_rope_scaling_finetuned(any(mixer.rope is not None for mixer in config.attentions))
