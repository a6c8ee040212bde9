"""Mixers with a state as the native decoder takes them."""

from mxconv.engine.native_vectors import native_norm, native_projection, native_vector
from mxconv.engine.recurrent.convolution import WeightedConvolution
from mxconv.engine.recurrent.gated_delta_net import EPS, WeightedDeltaNet
from mxconv.engine.recurrent.mamba2 import WeightedMamba2
from mxconv.engine.recurrent.mixer import RecurrentMixer
from mxconv.engine.recurrent.short_convolution import WeightedShortConvolution
from mxconv.kernels import _native


def native_recurrent(mixer: RecurrentMixer, slot: int, only_follows: bool) -> _native.Part:
    """The mixer of a layer.

    Args:
        mixer: with its tensors.
        slot: of the layer, among those with a state.
        only_follows: whether its states go with the text and nothing is added to rows.
    """
    assert isinstance(mixer, WeightedShortConvolution | WeightedDeltaNet | WeightedMamba2), "there are no others"
    convolution = _convolution(mixer.convolution, slot, only_follows)
    if isinstance(mixer, WeightedDeltaNet):
        return _delta_net(mixer, convolution)
    if isinstance(mixer, WeightedMamba2):
        return _mamba2(mixer, convolution)
    return _native.short_convolution(
        convolution=convolution, inputs=native_projection(mixer.inputs), output=native_projection(mixer.output)
    )


def _delta_net(mixer: WeightedDeltaNet, convolution: _native.Convolution) -> _native.Part:
    parts, norm = mixer.parts, native_norm(mixer.norm)
    assert norm is not None
    return _native.delta_net(
        convolution=convolution,
        num_key_heads=parts.num_key_heads,
        memory=parts.state.memory,
        queries_keys_values=native_projection(mixer.queries_keys_values),
        gate=None if parts.fused else native_projection(mixer.gate),
        beta=native_projection(mixer.beta),
        decay=None if parts.fused else native_projection(mixer.decay),
        decay_bias=native_vector(mixer.decay_bias),
        rate=native_vector(mixer.rate),
        norm=norm,
        eps=float(EPS),
        output=native_projection(mixer.output),
    )


def _mamba2(mixer: WeightedMamba2, convolution: _native.Convolution) -> _native.Part:
    parts, norm = mixer.parts, native_norm(mixer.norm)
    assert norm is not None
    return _native.mamba2(
        convolution=convolution,
        num_groups=parts.num_groups,
        memory=parts.state.memory,
        activation=parts.activation,
        inputs=native_projection(mixer.inputs),
        step_bias=native_vector(mixer.step_bias),
        step_limits=parts.step_limits,
        rate=native_vector(mixer.rate),
        skip=native_vector(mixer.skip),
        norm=norm,
        norm_groups=parts.norm_groups,
        output=native_projection(mixer.output),
    )


def _convolution(convolution: WeightedConvolution, slot: int, only_follows: bool) -> _native.Convolution:
    bias = None if convolution.bias is None else native_vector(convolution.bias)
    return _native.Convolution(native_vector(convolution.taps), bias, slot, only_follows)
