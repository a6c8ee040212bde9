"""Where mixers with a state stand in a GGUF file.

llama.cpp's DeltaNet of Qwen 3.5 has value heads in another order: it repeats the key heads as a whole, h1 h2 h1 h2,
where the checkpoint has all value heads of a key head side by side.

Source:
    conversion/qwen.py, mamba.py and lfm2.py of the llama.cpp in llama-cpp-python 0.3.36.
"""

from collections.abc import Iterator
from itertools import pairwise

from mxconv.arch.gguf.place import Place, Ranges, of_linear, of_norm, of_rows
from mxconv.arch.state_mixers import Convolution, GatedDeltaNet, Mamba2, Recurrent


def recurrent_places(mixer: Recurrent) -> Iterator[tuple[str, Place]]:
    """Of all its tensors."""
    if isinstance(mixer, Mamba2):
        yield from _mamba2(mixer)
    elif isinstance(mixer, GatedDeltaNet):
        yield from _fused_delta_net(mixer) if mixer.fused else _delta_net(mixer)
    else:
        yield from _convolution(mixer.convolution, mixer.size, "shortconv.conv")
        yield from of_linear(mixer.inputs, "shortconv.in_proj")
        yield from of_linear(mixer.output, "shortconv.out_proj")


def turned_heads(mixer: GatedDeltaNet, head_dim: int, first: int = 0) -> Ranges:
    """Value heads of `head_dim` rows each, from row `first` on: first of each key head's, then the next ones'."""
    group = mixer.num_value_heads // mixer.num_key_heads
    heads = (head * group + each for each in range(group) for head in range(mixer.num_key_heads))
    return tuple(range(first + head * head_dim, first + (head + 1) * head_dim) for head in heads)


def _delta_net(mixer: GatedDeltaNet) -> Iterator[tuple[str, Place]]:
    keys, values, heads = 2 * mixer.num_keys, mixer.value_dim, turned_heads(mixer, 1)
    channels = (range(keys), *turned_heads(mixer, values, keys))
    yield from of_rows(mixer.queries_keys_values, "attn_qkv", channels)
    yield from of_rows(mixer.gate, "attn_gate", turned_heads(mixer, values))
    yield from of_rows(mixer.beta, "ssm_beta", heads)
    yield from of_rows(mixer.decay, "ssm_alpha", heads)
    yield from _convolution(mixer.convolution, mixer.state.num_channels, "ssm_conv1d", channels)
    yield mixer.decay_bias, Place("ssm_dt.bias", rows=heads)
    yield mixer.decay_log, Place("ssm_a", rows=heads, is_rate=True)
    yield from of_norm(mixer.norm, "ssm_norm")
    yield f"{mixer.output.name}.weight", Place("ssm_out.weight", columns=turned_heads(mixer, values))


def _fused_delta_net(mixer: GatedDeltaNet) -> Iterator[tuple[str, Place]]:
    """Whose tensors hold key head by key head: its query, key, values and gates."""
    keys, values = mixer.key_dim, mixer.num_values // mixer.num_key_heads
    starts = (0, keys, 2 * keys, 2 * keys + values, 2 * (keys + values))
    parts = [
        tuple(range(head * starts[-1] + start, head * starts[-1] + stop) for head in range(mixer.num_key_heads))
        for start, stop in pairwise(starts)
    ]
    yield from of_rows(mixer.queries_keys_values, "attn_qkv", (*parts[0], *parts[1], *parts[2]))
    yield from of_rows(mixer.gate, "attn_gate", parts[3])
    yield from of_linear(mixer.beta, "ssm_ba")
    yield from _convolution(mixer.convolution, mixer.state.num_channels, "ssm_conv1d")
    yield mixer.decay_bias, Place("ssm_dt.bias")
    yield mixer.decay_log, Place("ssm_a", is_rate=True)
    yield from of_norm(mixer.norm, "ssm_norm")
    yield from of_linear(mixer.output, "ssm_out")


def _mamba2(mixer: Mamba2) -> Iterator[tuple[str, Place]]:
    column = mixer.num_heads, 1
    yield from of_linear(mixer.inputs, "ssm_in")
    yield from _convolution(mixer.convolution, mixer.state.num_channels, "ssm_conv1d")
    yield mixer.step_bias, Place("ssm_dt.bias")
    yield mixer.decay_log, Place("ssm_a", shape=column, own_shape=column[:1], is_rate=True)
    yield mixer.skip, Place("ssm_d", shape=column, own_shape=column[:1])
    groups = mixer.norm_groups, mixer.size // mixer.norm_groups
    norm = Place("ssm_norm.weight", shape=groups, own_shape=(mixer.size,), offset=mixer.norm.offset)
    yield f"{mixer.norm.name}.weight", norm
    yield from of_linear(mixer.output, "ssm_out")


def _convolution(
    convolution: Convolution, num_channels: int, module: str, channels: Ranges | None = None
) -> Iterator[tuple[str, Place]]:
    shape, own_shape = (num_channels, convolution.kernel_size), (num_channels, 1, convolution.kernel_size)
    place = Place(f"{module}.weight", rows=channels, shape=shape, own_shape=own_shape, is_vector=True)
    yield f"{convolution.name}.weight", place
    if convolution.has_bias:
        yield f"{convolution.name}.bias", Place(f"{module}.bias", rows=channels)
