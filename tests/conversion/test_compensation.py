"""Codes chosen by what a matrix multiplies, where the matrix was rescaled before it was encoded."""

from dataclasses import replace

import numpy as np
import pytest
from native_models import escaping_bsfp

from mxconv.codecs.bsfp.speq import rescale, rescale_factor
from mxconv.codecs.float16 import BF16
from mxconv.codecs.gptq import E2M1, MxGrid
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.conversion import compensation
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
    cast = replace(escaping_bsfp(rescale(patterns, factor, BF16), BF16), rescale_factor=factor)
    inputs = InputRows(128)
    inputs.add(x, np.arange(256) % 2 == 1)
    exact = BF16.decode(patterns).astype(np.float64)
    codes, scales = bsfp_anew(cast, slice(0, len(weights)), exact, MatrixInputs.of(inputs, False))
    anew = replace(cast, packed=replace(cast.packed, codes=codes, scales=scales))
    # of outputs without the outlier, in whose row all other weights are nothing beside it
    errors = (np.square(x @ (each.draft_rows(0, len(weights)) - exact).T).sum(axis=0) for each in (cast, anew))
    of_cast, of_anew = (np.delete(each, 4).sum() for each in errors)
    assert of_anew < 0.9 * of_cast


@pytest.mark.parametrize("num_rows", [40, 200])  # fewer and more than inputs
@pytest.mark.parametrize("is_turned", [False, True])
def test_many_inputs_are_rounded_alike_by_other_sums(
    num_rows: int, is_turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    noise, weights = rng.standard_normal((num_rows, 96)), rng.standard_normal((32, 96))
    x = (rng.standard_normal((num_rows, 8)) @ rng.standard_normal((8, 96)) + noise).astype(np.float32)
    lacking = (x @ rng.standard_normal((96, 32))).astype(np.float32)
    stored = weights.T if is_turned else weights
    grid = MxGrid(E2M1, np.full(stored.shape, 0.25))
    found = []
    for many in (96, 95):
        monkeypatch.setattr(compensation, "MANY_INPUTS", many)
        rows = InputRows(96)
        for some in np.array_split(np.arange(num_rows), 3):
            rows.add(x[some], some % 2 == 1, (x + 0.1 * noise).astype(np.float32)[some], lacking[some])
        inputs = MatrixInputs.of(rows, is_turned)
        moved = inputs.moved(stored, slice(0, 32))
        found.append((moved, inputs.better_codes(moved, grid, grid.cast(moved))))
    (moved, codes), (moved_otherwise, codes_otherwise) = found
    assert np.abs(moved - stored).max() > 0.01
    assert np.allclose(moved, moved_otherwise, atol=1e-4)
    assert (codes == codes_otherwise).mean() > 0.99
    assert (codes != grid.cast(moved)).mean() > 0.1
