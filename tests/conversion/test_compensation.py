"""Codes chosen by what a matrix multiplies, where the matrix was rescaled before it was encoded."""

from dataclasses import replace

import numpy as np
import pytest
from native_models import stored_bsfp

from mxconv.codecs.bsfp.speq import rescale, rescale_factor
from mxconv.codecs.float16 import BF16
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion.compensation import MatrixInputs, bsfp_anew
from mxconv.engine.recorded_inputs import InputRows


@pytest.mark.parametrize("outlier", [0.02, 2.5, 40.0])
def test_outputs_err_less_with_the_codes_chosen_anew_whatever_the_factor(outlier: float) -> None:
    rng = np.random.default_rng(3)
    weights, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((2 * TILE_ROWS, 128), (256, 128)))
    weights *= np.float32(0.02)
    weights[4, 5] = outlier
    x *= np.exp(rng.standard_normal(128)).astype(np.float32)  # some columns matter more than others
    patterns, factor = BF16.encode(weights), rescale_factor(outlier)
    cast = replace(stored_bsfp(rescale(patterns, factor, BF16), BF16), rescale_factor=factor)
    inputs = InputRows(128)
    inputs.add(x, np.arange(256) % 2 == 1)
    exact = BF16.decode(patterns).astype(np.float64)
    codes, scales = bsfp_anew(cast, slice(0, len(weights)), exact, MatrixInputs.of(inputs, False))
    anew = replace(cast, packed=replace(cast.packed, codes=codes, scales=scales))
    # of outputs without the outlier, in whose row all other weights are nothing beside it
    errors = (np.square(x @ (each.draft_rows(0, len(weights)) - exact).T).sum(axis=0) for each in (cast, anew))
    of_cast, of_anew = (np.delete(each, 4).sum() for each in errors)
    assert of_anew < 0.9 * of_cast
