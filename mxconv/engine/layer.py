"""One transformer layer: a mixer and an MLP with their norms, added to its input."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arch.description import Attention, LatentAttention, LayerParts, Mixer
from mxconv.arch.elements import Mlp, Norm
from mxconv.arch.mixture import Mixture
from mxconv.arrays import F32
from mxconv.engine.experts import WeightedMixture
from mxconv.engine.forest import SequenceRows
from mxconv.engine.latent_mixer import WeightedLatentAttention
from mxconv.engine.layer_input import WeightedInput
from mxconv.engine.mixer import WeightedAttention
from mxconv.engine.mlp import WeightedMlp
from mxconv.engine.norm import WeightedNorm
from mxconv.engine.positions import Positions
from mxconv.engine.recurrent.mixer import RecurrentMixer
from mxconv.engine.recurrent.take import take_recurrent
from mxconv.engine.sink_window import SinkWindow
from mxconv.engine.weights import CheckedWeights


@dataclass(frozen=True, eq=False)
class Layer:
    """The tensors of layer `index`, and what it does with them.

    The last three are of drafts: a part that is skipped leaves its input as it is, and writes nothing to the cache.
    `skips_attention` skips the mixer, whichever it is.
    """

    index: int
    parts: LayerParts
    mixer: WeightedAttention | WeightedLatentAttention | RecurrentMixer
    mlp: WeightedMlp | WeightedMixture | None
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
            prefix: of its tensors' names; None is the model's own, with the index behind it.
            attended_size: numbers of a row that attention takes in; None is the hidden size.

        Raises:
            ModelError: one is missing or has another shape than the configuration says.
        """
        name = f"{config.layer_prefix}.{index}." if prefix is None else prefix
        parts, hidden = config.layers[index], config.hidden_size

        def norm(wanted: Norm | None) -> WeightedNorm | None:
            return None if wanted is None else WeightedNorm.take(weights, wanted, hidden, name)

        return cls(
            index=index,
            parts=parts,
            mixer=_mixer(weights, parts.mixer, index, (attended_size or hidden, hidden), name),
            mlp=_mlp(weights, parts.mlp, hidden, name),
            before_mixer=norm(parts.before_mixer),
            after_mixer=norm(parts.after_mixer),
            before_mlp=norm(parts.before_mlp),
            after_mlp=norm(parts.after_mlp),
            layer_input=None
            if parts.layer_input is None
            else WeightedInput.take(weights, parts.layer_input, hidden, name),
            scalar=None if parts.scalar is None else weights.vector(f"{name}{parts.scalar}", 1),
        )

    @property
    def attention(self) -> WeightedAttention | WeightedLatentAttention:
        """The mixer, of a layer that attends."""
        assert isinstance(self.mixer, WeightedAttention | WeightedLatentAttention), "asked of layers that attend"
        return self.mixer

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
            added = _normed(self.after_mixer, self.mixer(taken, sequences, positions, self.sink_window))
            mixed = x + self._scaled(added)
        elif isinstance(self.mixer, RecurrentMixer):
            self.mixer.follow(sequences)
        if self.mlp is not None and not self.skips_mlp:
            mixed = self.with_mlp(mixed, x if self.parts.is_parallel else mixed)
        if self.layer_input is not None and own_inputs is not None and not self.skips_mlp:
            mixed = mixed + self.layer_input(mixed, own_inputs)
        return mixed if self.scalar is None else mixed * self.scalar

    def with_mlp(self, x: F32, taken: F32 | None = None) -> F32:
        """Rows and what the MLP makes of others (None: of the same), (num_tokens, hidden_size)."""
        assert self.mlp is not None, "asked of layers that have one"
        h = _normed(self.before_mlp, x if taken is None else taken)
        return x + self._scaled(_normed(self.after_mlp, self.mlp(h)))

    def _scaled(self, added: F32) -> F32:
        multiplier = self.parts.residual_multiplier
        return added if multiplier == 1 else added * np.float32(multiplier)


def _mixer(
    weights: CheckedWeights, parts: Mixer, index: int, sizes: tuple[int, int], name: str
) -> WeightedAttention | WeightedLatentAttention | RecurrentMixer:
    if isinstance(parts, Attention):
        return WeightedAttention.take(weights, parts, index, sizes, name)
    if isinstance(parts, LatentAttention):
        return WeightedLatentAttention.take(weights, parts, index, sizes, name)
    return take_recurrent(weights, parts, index, sizes[1], name)


def _mlp(
    weights: CheckedWeights, parts: Mlp | Mixture | None, hidden_size: int, name: str
) -> WeightedMlp | WeightedMixture | None:
    if parts is None:
        return None
    taken = WeightedMixture if isinstance(parts, Mixture) else WeightedMlp
    return taken.take(weights, parts, hidden_size, name)  # type: ignore[arg-type]


def _normed(norm: WeightedNorm | None, x: F32) -> F32:
    return x if norm is None else norm(x)
