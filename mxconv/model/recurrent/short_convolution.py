"""The short convolution between two gates."""

from dataclasses import dataclass

from mxconv.arrays import F32
from mxconv.kernels.matrix import Matrix
from mxconv.model.projection import Projection
from mxconv.model.recurrent.convolution import WeightedConvolution
from mxconv.model.recurrent.description import ShortConvolution
from mxconv.model.recurrent.layer_state import LayerState
from mxconv.model.recurrent.mixer import RecurrentMixer
from mxconv.model.weights import CheckedWeights


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
