"""Every family against transformers, and the bits of its rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from row_invariance import assert_batch_invariant, assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.arch.families.registry import FAMILIES, TOWERS
from mxconv.engine.cache import KVCache

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
NAMES = list(checkpoints.FAMILIES)
PROMPT = 64
CUTS = ([80], [2, 3, 5, 8, 33])


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, family_of: Callable[[str], Any]) -> Any:
    """Every one in turn."""
    return family_of(request.param)


def test_every_family_of_the_table_is_tested() -> None:
    tested = {own["model_type"] for own in checkpoints.FAMILIES.values()}
    assert tested == {*FAMILIES, *TOWERS}


def test_logits_agree_with_transformers_and_do_not_depend_on_how_the_text_is_cut(family: Any) -> None:
    decoder, ids = family.decoder, family.token_ids
    found = logits_in_steps(decoder, ids, [PROMPT, 1])
    assert found.dtype == np.float32
    assert np.abs(found - family.expected).max() <= 1e-3 * np.abs(family.expected).max()
    assert (found.argmax(-1) == family.expected.argmax(-1)).all()
    for widths in CUTS:
        assert_same_bits(logits_in_steps(decoder, ids, widths), found, f"cut at {widths}")
    parts = logits_after_rollback(decoder, ids, 30, [5, 6, 7, 8])
    assert_same_bits(np.concatenate(parts), found, "after tokens that were taken back")


def test_a_rows_bits_are_those_of_its_path_in_a_batch(family: Any) -> None:
    assert_batch_invariant(family.decoder, family.token_ids, rows=(3, 4))


def test_heads_of_two_sizes_share_a_cache_with_room_for_the_larger(family_of: Callable[[str], Any]) -> None:
    family = family_of("gemma4")
    cache = KVCache(family.config, capacity=1)
    family.decoder.forward(family.token_ids[:5], cache)
    small, large = (cache.read(layer, range(5))[0] for layer in (0, 1))
    assert small.shape == large.shape == (2, 5, 24)
    assert small[:, :, :16].all() and not small[:, :, 16:].any()
    assert large[0].all() and not large[1].any()
