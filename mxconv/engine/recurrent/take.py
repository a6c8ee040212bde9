"""From the description of a mixer with a state to the mixer with its tensors."""

from mxconv.arch.state_mixers import GatedDeltaNet, Recurrent, ShortConvolution
from mxconv.engine.recurrent.gated_delta_net import WeightedDeltaNet
from mxconv.engine.recurrent.mamba2 import WeightedMamba2
from mxconv.engine.recurrent.mixer import RecurrentMixer
from mxconv.engine.recurrent.short_convolution import WeightedShortConvolution
from mxconv.engine.weights import CheckedWeights


def take_recurrent(
    weights: CheckedWeights, parts: Recurrent, index: int, hidden_size: int, prefix: str
) -> RecurrentMixer:
    """Pick the tensors of layer `index`.

    Raises:
        ModelError: one is missing or has another shape.
    """
    if isinstance(parts, ShortConvolution):
        return WeightedShortConvolution.take(weights, parts, index, hidden_size, prefix)
    if isinstance(parts, GatedDeltaNet):
        return WeightedDeltaNet.take(weights, parts, index, hidden_size, prefix)
    return WeightedMamba2.take(weights, parts, index, hidden_size, prefix)
