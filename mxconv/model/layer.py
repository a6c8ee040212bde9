"""One transformer layer: a mixer and an MLP with their norms, added to its input."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arrays import F32
from mxconv.model.config import ModelConfig
from mxconv.model.description import LayerParts, Norm
from mxconv.model.experts import WeightedMixture
from mxconv.model.forest import SequenceRows
from mxconv.model.latent import LatentAttention
from mxconv.model.latent_mixer import WeightedLatentAttention
from mxconv.model.layer_input import WeightedInput
from mxconv.model.mixer import WeightedAttention
from mxconv.model.mixture import Mixture
from mxconv.model.mlp import WeightedMlp
from mxconv.model.norm import WeightedNorm
from mxconv.model.positions import Positions
from mxconv.model.sink_window import SinkWindow
from mxconv.model.weights import CheckedWeights


@dataclass(frozen=True, eq=False)
class Layer:
    """The tensors of layer `index`, and what it does with them.

    The last three are of drafts: a part that is skipped leaves its input as it is, and writes nothing to the cache.
    """

    index: int
    parts: LayerParts
    attention: WeightedAttention | WeightedLatentAttention
    mlp: WeightedMlp | WeightedMixture
    before_mixer: WeightedNorm | None
    after_mixer: WeightedNorm | None
    before_mlp: WeightedNorm | None
    after_mlp: WeightedNorm | None
    layer_input: WeightedInput | None
    scalar: F32 | None
    skips_attention: bool = False
    skips_mlp: bool = False
    sink_window: SinkWindow | None = None

    @classmethod
    def take(
        cls,
        weights: CheckedWeights,
        config: ModelConfig,
        index: int,
        prefix: str | None = None,
        attended_size: int | None = None,
    ) -> "Layer":
        """Pick the layer's tensors.

        Args:
            weights: all tensors.
            config: what the model is made of.
            index: of the layer.
            prefix: of its tensors' names, before the index; None is the model's.
            attended_size: numbers of a row that attention takes in; None is the hidden size.

        Raises:
            ModelError: one is missing or has another shape than the configuration says.
        """
        name = f"{config.layer_prefix if prefix is None else prefix}.{index}."
        parts, hidden = config.layers[index], config.hidden_size

        def norm(wanted: Norm | None) -> WeightedNorm | None:
            return None if wanted is None else WeightedNorm.take(weights, wanted, hidden, name)

        return cls(
            index=index,
            parts=parts,
            attention=_mixer(weights, parts, index, (attended_size or hidden, hidden), name),
            mlp=WeightedMixture.take(weights, parts.mlp, hidden, name)
            if isinstance(parts.mlp, Mixture)
            else WeightedMlp.take(weights, parts.mlp, hidden, name),
            before_mixer=norm(parts.before_mixer),
            after_mixer=norm(parts.after_mixer),
            before_mlp=norm(parts.before_mlp),
            after_mlp=norm(parts.after_mlp),
            layer_input=None
            if parts.layer_input is None
            else WeightedInput.take(weights, parts.layer_input, hidden, name),
            scalar=None if parts.scalar is None else weights.vector(f"{name}{parts.scalar}", 1),
        )

    def __call__(
        self, x: F32, sequences: Sequence[SequenceRows], positions: Positions, own_inputs: F32 | None = None
    ) -> F32:
        """Evaluate rows behind what their caches hold, writing their keys and values there.

        Args:
            x: (num_tokens, hidden_size) float32, the rows of each sequence behind those of the one before.
            sequences: their caches, with room for them, and where they hang.
            positions: of the rows.
            own_inputs: the layer's own embeddings of them, (num_tokens, size), where it has such.

        Returns:
            (num_tokens, hidden_size) float32.
        """
        mixed = x
        if not self.skips_attention:
            taken = _normed(self.before_mixer, x)
            added = _normed(self.after_mixer, self.attention(taken, sequences, positions, self.sink_window))
            mixed = x + self._scaled(added)
        if not self.skips_mlp:
            mixed = self.with_mlp(mixed, x if self.parts.is_parallel else mixed)
        if self.layer_input is not None and own_inputs is not None and not self.skips_mlp:
            mixed = mixed + self.layer_input(mixed, own_inputs)
        return mixed if self.scalar is None else mixed * self.scalar

    def with_mlp(self, x: F32, taken: F32 | None = None) -> F32:
        """Rows and what the MLP makes of others (None: of the same), (num_tokens, hidden_size)."""
        h = _normed(self.before_mlp, x if taken is None else taken)
        return x + self._scaled(_normed(self.after_mlp, self.mlp(h)))

    def _scaled(self, added: F32) -> F32:
        multiplier = self.parts.residual_multiplier
        return added if multiplier == 1 else added * np.float32(multiplier)


def _mixer(
    weights: CheckedWeights, parts: LayerParts, index: int, sizes: tuple[int, int], name: str
) -> WeightedAttention | WeightedLatentAttention:
    if isinstance(parts.mixer, LatentAttention):
        return WeightedLatentAttention.take(weights, parts.mixer, index, sizes, name)
    return WeightedAttention.take(weights, parts.mixer, index, sizes, name)


def _normed(norm: WeightedNorm | None, x: F32) -> F32:
    return x if norm is None else norm(x)
