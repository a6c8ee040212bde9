"""The bytes of weights that a decoder reads for a pass, part by part."""

from dataclasses import dataclass

from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True)
class PartBytes:
    """Bytes of the attention and the MLP of every layer, and of the output head. Norms and biases do not count."""

    attention: tuple[float, ...]
    mlp: tuple[float, ...]
    head: float

    @classmethod
    def of(cls, decoder: Decoder, bits_per_weight: float = 16.0, every_expert: bool = False) -> "PartBytes":
        """From the shapes of the matrices, which all have this many bits a weight, scales counted.

        Of experts those that one row is sent to, or every one.
        """

        def num_bytes(*matrices: Matrix) -> float:
            return sum(matrix.shape[0] * matrix.shape[1] for matrix in matrices) * bits_per_weight / 8

        return cls(
            attention=tuple(num_bytes(*layer.mixer.matrices) for layer in decoder.layers),
            mlp=tuple(
                0.0
                if layer.mlp is None
                else (layer.mlp.num_stored_weights if every_expert else layer.mlp.num_weights) * bits_per_weight / 8
                for layer in decoder.layers
            ),
            head=num_bytes(decoder.head),
        )

    def total(self, skipped: Skipped | None = None) -> float:
        """What a pass reads without the skipped parts."""
        left_out = skipped or Skipped()
        attention = sum(part for layer, part in enumerate(self.attention) if layer not in left_out.attention)
        mlp = sum(part for layer, part in enumerate(self.mlp) if layer not in left_out.mlp)
        return attention + mlp + self.head
