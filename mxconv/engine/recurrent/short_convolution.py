"""The short convolution between two gates."""

from dataclasses import dataclass

from mxconv.arch.state_mixers import ShortConvolution
from mxconv.arrays import F32
from mxconv.engine.projection import Projection
from mxconv.engine.recurrent.convolution import WeightedConvolution
from mxconv.engine.recurrent.layer_state import LayerState
from mxconv.engine.recurrent.mixer import RecurrentMixer
from mxconv.engine.weights import CheckedWeights
from mxconv.kernels.matrix import Matrix


@dataclass(frozen=True, eq=False)
class WeightedShortConvolution(RecurrentMixer):
    """Its matrices and taps."""

    parts: ShortConvolution
    inputs: Projection
    convolution: WeightedConvolution
    output: Projection

    @classmethod
    def take(
        cls, weights: CheckedWeights, parts: ShortConvolution, index: int, hidden_size: int, prefix: str
    ) -> "WeightedShortConvolution":
        """Raises ModelError where a tensor is missing or has another shape."""
        return cls(
            index=index,
            parts=parts,
            inputs=Projection.take(weights, parts.inputs, (3 * parts.size, hidden_size), prefix),
            convolution=WeightedConvolution.take(weights, parts.convolution, parts.size, prefix),
            output=Projection.take(weights, parts.output, (hidden_size, parts.size), prefix),
        )

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        return self.inputs.matrix, self.output.matrix

    def split(self, h: F32) -> tuple[F32, F32 | None]:
        rows, size = self.inputs(h), self.parts.size
        return rows[:, :size] * rows[:, 2 * size :], rows[:, size : 2 * size]

    def step(self, state: LayerState, inputs: F32) -> F32:
        return self.convolution.step(state.window, inputs)

    def finish(self, made: F32, aside: F32 | None) -> F32:
        assert aside is not None
        return self.output(aside * made)
