"""What the matrices of a layer multiply, in the exact model and in its draft side by side: what a calibration learns.

    recorder = InputRecorder(prefix, stage=2)
    layer = RecordedLayer(weights, config, index, recorder)  # then evaluate texts
    recorder.pass_rows().taken["model.layers.0.mlp.up_proj.weight", None]

A layer has four stages: the matrices of its mixer, the mixer's last one, those of its MLP, and the MLP's last one. The
matrices of a stage multiply what those of the stages before made, so that these are rounded first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mxconv.arch.config import ModelConfig
from mxconv.arrays import F32, F64
from mxconv.engine.attention import WeightedAttention
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import WeightedMixture
from mxconv.engine.rope import Positions
from mxconv.engine.sequence_rows import SequenceRows
from mxconv.engine.weights import CheckedWeights, ExpertStack, ModelWeights
from mxconv.kernels.matrix import Matrix

CHUNK_ROWS = 1024  # that are summed in float32
NUM_STAGES = 4
MLP = 2  # the first stage of it

Key = tuple[str, int | None]
"""A tensor by the decoder's name, and of a stack the expert."""


class InputRows:
    """The rows X that matrices with one input multiply in a draft, each of one of two halves, and sums over them.

    Y are the same rows in the exact model, R the rows that the product is added to, and S those of the exact model.
    """

    def __init__(self, num_inputs: int) -> None:
        self.num_inputs = num_inputs
        self.num_rows = 0
        self._passes: list[tuple[F32, NDArray[np.bool_], F32 | None, F32 | None]] = []

    def add(self, x: F32, is_second: NDArray[np.bool_], exact: F32 | None = None, lacking: F32 | None = None) -> None:
        """Keep the rows of a pass.

        Args:
            x: X, (num_tokens, in_features).
            is_second: (num_tokens,) which of them are of the second half.
            exact: Y; None where they are unknown.
            lacking: S - R, (num_tokens, out_features); None where products are added to nothing.
        """
        self._passes.append((x, is_second, exact, lacking))
        self.num_rows += len(x)

    @property
    def squares(self) -> F64:
        """Sums of squares of each input, (in_features,)."""
        with np.errstate(over="ignore"):
            found: F64 = np.sum([np.square(x).sum(axis=0) for x, *_ in self._passes], axis=0, dtype=np.float64)
        return found

    @property
    def has_exact(self) -> bool:
        """Whether Y is known."""
        return any(exact is not None for _, _, exact, _ in self._passes)

    def products(self, by_half: bool) -> F64:
        """X^T X of each half, (2, in_features, in_features), or of all rows, (1, in_features, in_features)."""
        return self._sums(self.num_inputs, (x for x, *_ in self._passes), by_half)

    def moved(self) -> F64:
        """X^T (Y - X) of each half, (2, in_features, in_features)."""
        moved = (None if exact is None else exact - x for x, _, exact, _ in self._passes)
        return self._sums(self.num_inputs, moved)

    def missing(self) -> F64 | None:
        """X^T (S - R) of each half, (2, in_features, out_features), where there are such."""
        found = [lacking for *_, lacking in self._passes]
        sizes = {lacking.shape[1] for lacking in found if lacking is not None}
        return self._sums(sizes.pop(), found) if sizes else None

    def joined(self) -> tuple[F32, NDArray[np.bool_]]:
        """X, and which rows are of the second half."""
        x, is_second = (np.concatenate([each[place] for each in self._passes]) for place in range(2))
        return x, is_second

    def wanted(self, weights: F32, outputs: slice) -> F32:
        """(Y - X) W^T + S - R, (num_rows, num_outputs), of some outputs, of which `weights` are W's rows."""
        made = []
        for x, _, exact, lacking in self._passes:
            moved = np.zeros((len(x), len(weights)), np.float32) if exact is None else (exact - x) @ weights.T
            made.append(moved if lacking is None else moved + lacking[:, outputs])
        return np.concatenate(made)

    def _sums(self, num_columns: int, others: Iterable[F32 | None], by_half: bool = True) -> F64:
        """X^T times other rows, of each half or of all."""
        sums = np.zeros((2 if by_half else 1, self.num_inputs, num_columns))
        for (x, is_second, *_), other in zip(self._passes, others, strict=True):
            if other is None:
                continue
            for half in range(2):
                of_half = np.flatnonzero(is_second == half)
                for start in range(0, len(of_half), CHUNK_ROWS):
                    some = of_half[start : start + CHUNK_ROWS]
                    rows = x[some]
                    sums[half * by_half] += rows.T @ (rows if other is x else other[some])
        return sums


class EnoughError(Exception):
    """All that is to be recorded has been."""


class PassRows(NamedTuple):
    """What matrices took in a pass, (num_tokens, in_features) each, and what their products were added to."""

    taken: dict[Key, F32]
    residuals: dict[Key, F32]  # (num_tokens, hidden_size), in the products' own measure


class InputRecorder:
    """What the matrices of a layer multiply in a pass: those of one stage, or without one all whose rows are texts'.

    `turned` names those that a layer multiplies transposed: their stored rows are its inputs. `paired` are those that
    take every row of the texts, which experts do not.
    """

    def __init__(self, prefix: str, stage: int | None = None) -> None:
        self.prefix = prefix  # of the names of the layer's matrices
        self.stage = stage
        self.turned: set[Key] = set()
        self.paired: set[Key] = set()
        self.of_mixer: set[Key] = set()
        self.last: set[Key] = set()  # of the mixer and of the MLP
        self.factors: dict[Key, float] = {}  # by which products of these are multiplied and added to the residual
        self._rows = PassRows({}, {})
        self._residual: F32 | None = None

    def pass_rows(self) -> PassRows:
        """What was recorded since the last call."""
        found, self._rows = self._rows, PassRows({}, {})
        return found

    def weights(self, weights: ModelWeights) -> ModelWeights:
        """The same weights, of which the layer's matrices record."""
        own = {name: matrix for name, matrix in weights.matrices.items() if name.startswith(self.prefix)}
        matrices = {name: RecordedMatrix((name, None), matrix, self) for name, matrix in own.items()}
        stacks = {
            name: self._stack(name, stack) for name, stack in weights.stacks.items() if name.startswith(self.prefix)
        }
        return replace(weights, matrices={**weights.matrices, **matrices}, stacks={**weights.stacks, **stacks})

    def begin(self, residual: F32) -> None:
        """What the next part of the layer makes will be added to these rows."""
        self._residual = residual

    def take(self, key: Key, x: F32, is_turned: bool) -> None:
        """Record that a matrix multiplies rows. Raises EnoughError after the last one of a stage of the mixer."""
        if key not in self.paired if self.stage is None else self._stage_of(key) != self.stage:
            return
        taken, residuals = self._rows
        assert key not in taken, "a matrix multiplies once in a pass"
        taken[key] = x
        if is_turned:
            self.turned.add(key)
        if key in self.factors and self._residual is not None:
            residuals[key] = self._residual / np.float32(self.factors[key])
        if self.stage == 1 or (self.stage == 0 and taken.keys() >= self.of_mixer - self.last):
            raise EnoughError

    def _stage_of(self, key: Key) -> int:
        return (0 if key in self.of_mixer else MLP) + (key in self.last)

    def _stack(self, name: str, stack: ExpertStack) -> ExpertStack:
        return ExpertStack(stack.shape, lambda expert: RecordedMatrix((name, expert), stack.matrix(expert), self))


@dataclass(frozen=True, eq=False)
class RecordedMatrix:
    """Implements `Matrix` by another one."""

    key: Key
    matrix: Matrix
    recorder: InputRecorder
    is_turned: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def multiply(self, x: F32) -> F32:
        self.recorder.take(self.key, x, self.is_turned)
        return self.matrix.multiply(x)

    def rows(self, indices: NDArray[np.intp]) -> F32:
        return self.matrix.rows(indices)

    def turned(self) -> "RecordedMatrix":
        return replace(self, matrix=self.matrix.turned(), is_turned=not self.is_turned)


class RecordedLayer(Layer):
    """A layer whose matrices record."""

    def __init__(self, weights: ModelWeights, config: ModelConfig, index: int, recorder: InputRecorder) -> None:
        super().__init__(CheckedWeights(recorder.weights(weights), "calibration"), config, index)
        self.recorder = recorder
        if isinstance(self.mixer, WeightedAttention):
            self.mixer.attends_together = True
        output, is_mixture = self.mixer.output.matrix, isinstance(self.mlp, WeightedMixture)
        mlp = self.mlp.shared if isinstance(self.mlp, WeightedMixture) else self.mlp
        recorder.of_mixer = _keys(self.mixer.matrices)
        recorder.paired = recorder.of_mixer | (_keys(mlp.matrices) if mlp else set())
        recorder.last = _keys([output, *([mlp.down.matrix] if mlp else [])])
        if isinstance(self.mlp, WeightedMixture):
            recorder.last |= _keys(map(self.mlp.experts.down, range(self.mlp.parts.routing.num_experts)))
        added = [output] if self.after_mixer is None else []
        if mlp and not is_mixture and self.after_mlp is None:
            added.append(mlp.down.matrix)
        recorder.factors = dict.fromkeys(_keys(added), self.parts.residual_multiplier)

    def mixed(self, x: F32, sequences: Sequence[SequenceRows], positions: Positions) -> F32:
        self.recorder.begin(x)
        return super().mixed(x, sequences, positions)

    def with_mlp(self, x: F32, taken: F32 | None = None) -> F32:
        self.recorder.begin(x)
        return super().with_mlp(x, taken)


def _keys(matrices: Iterable[Matrix]) -> set[Key]:
    return {matrix.key for matrix in matrices if isinstance(matrix, RecordedMatrix)}
