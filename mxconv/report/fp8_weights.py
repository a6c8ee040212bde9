"""FP8 matrices to look at: by the BF16 weights that they stand for."""

from dataclasses import replace

from mxconv.checkpoint.fp8 import Fp8Matrix
from mxconv.codecs.float16 import BF16
from mxconv.report.weights import WeightTensor


def decoded(tensor: WeightTensor, fp8: Fp8Matrix) -> WeightTensor:
    """The BF16 weights of a tensor that holds bytes."""
    return replace(tensor, float_format=BF16, rows=fp8.patterns, note="FP8, decoded to BF16", matrices=None)


def with_decoded(tensor: WeightTensor, fp8: Fp8Matrix) -> WeightTensor:
    """A tensor of bytes that is looked at decoded."""
    return replace(tensor, matrices=lambda: [decoded(tensor, fp8)])
