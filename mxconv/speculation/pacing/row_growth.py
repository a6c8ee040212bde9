"""How much more a pass reads for more rows: nothing more of a dense model, further experts of a mixture."""

from collections.abc import Callable
from functools import cache

from mxconv.engine.decoder import Decoder
from mxconv.engine.experts import WeightedMixture
from mxconv.engine.mlp import WeightedMlp

Growth = Callable[[float], float]  # rows to the weights that they read, in those of one row


def weights_of_a_row(decoder: Decoder) -> int:
    """What a pass over one row multiplies."""
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, WeightedMixture)]
    return _same_weights(decoder) + sum(mixture.num_weights for mixture in mixtures)


def growth_of(decoder: Decoder | None) -> Growth | None:
    """Of a decoder's passes; None where every row reads the same weights.

    Rows are taken to choose their experts independently. Those of one text agree more often, so this is the most that
    is to be expected, until passes are measured.
    """
    if decoder is None:
        return None
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, WeightedMixture)]
    if not mixtures:
        return None
    same = _same_weights(decoder)
    of_one = weights_of_a_row(decoder)

    @cache
    def of(num_rows: int) -> float:
        return (same + sum(mixture.expected_weights(num_rows) for mixture in mixtures)) / of_one

    def growth(num_rows: float) -> float:
        whole = int(num_rows)
        part = num_rows - whole
        return of(whole) + part * (of(whole + 1) - of(whole)) if part else of(whole)

    return growth


def _same_weights(decoder: Decoder) -> int:
    """Those that every pass reads."""
    matrices = [decoder.head, *(matrix for layer in decoder.layers for matrix in layer.mixer.matrices)]
    same = sum(matrix.shape[0] * matrix.shape[1] for matrix in matrices)
    return same + sum(layer.mlp.num_weights for layer in decoder.layers if isinstance(layer.mlp, WeightedMlp))
