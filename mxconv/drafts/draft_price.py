"""What a variant of the target is worth as a draft: how often it agrees, against what its tokens cost."""

from dataclasses import dataclass, field

from mxconv.drafts.running_mean import RunningMean
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


def speedup(agreement: float, price: float, most: int) -> tuple[float, int]:
    """The most tokens for the time of one plain token, and the length of a proposal that gives them.

    Args:
        agreement: the chance that a proposed token stands, those before it standing.
        price: of a proposed token, in passes of the level above.
        most: tokens of a proposal, at least one.

    Source:
        Leviathan et al., arXiv 2211.17192, Theorem 3.8; DEL, arXiv 2504.05598, counts layers in place of passes.
    """
    best = 0.0, 1
    stands = tokens = 1.0
    for length in range(1, most + 1):
        stands *= agreement
        tokens += stands
        best = max(best, (tokens / (1 + length * price), length), key=lambda found: found[0])
    return best


@dataclass
class DraftPrice:
    """A variant's token in passes of the level above: its share of the target's bytes, put right by what was measured.

    What rounds took beyond their share is taken for the same in every variant: calls cost what they cost. What they
    took less, because cheaper levels draft for this one, is taken for a share of it.
    """

    parts: PartBytes
    measured: RunningMean = field(default_factory=RunningMean)
    expected: RunningMean = field(default_factory=RunningMean)
    _shares: dict[Skipped, float] = field(default_factory=dict)

    def of(self, skipped: Skipped) -> float:
        share, measured, expected = self.share(skipped), self.measured.value, self.expected.value
        if not self.measured.weight:
            return share
        return share + measured - expected if measured > expected else share * measured / expected

    def learn(self, skipped: Skipped, num_tokens: int, draft_seconds: float, level_seconds: float) -> None:
        """A round: what proposing took, and then the level above."""
        if num_tokens and draft_seconds > 0 and level_seconds > 0:
            for mean in (self.measured, self.expected):
                mean.fade()
            self.measured.add_seconds(draft_seconds / num_tokens / level_seconds)
            self.expected.add(self.share(skipped))

    def share(self, skipped: Skipped) -> float:
        """Of the bytes of weights that a pass of the whole target reads."""
        if skipped not in self._shares:
            self._shares[skipped] = self.parts.total(skipped) / self.parts.total()
        return self._shares[skipped]
