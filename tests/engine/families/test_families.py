"""Every family against transformers, and the bits of its rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from row_invariance import assert_same_bits, logits_after_rollback, logits_in_steps

from mxconv.arch.families.table import FAMILIES, TOWERS
from mxconv.engine.cache import KVCache
from mxconv.engine.forest import SequenceRows
from mxconv.engine.skipped import Skipped
from mxconv.engine.tree import Tree

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
NAMES = list(checkpoints.FAMILIES)
PROMPT = 64
CUTS = ([60, 1], [2, 3, 5, 8], [33], [79, 1])


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, family_of: Callable[[str], Any]) -> Any:
    """Every one in turn."""
    return family_of(request.param)


def test_every_family_of_the_table_is_tested() -> None:
    tested = {own["model_type"] for own in checkpoints.FAMILIES.values()}
    assert tested == {*FAMILIES, *TOWERS}


def test_logits_of_a_prompt_and_its_continuation_agree_with_transformers(family: Any) -> None:
    decoder, cache = family.decoder, KVCache(family.config, capacity=8)
    parts = [decoder.forward(family.token_ids[:PROMPT], cache)]
    parts += [decoder.forward([token], cache) for token in family.token_ids[PROMPT:]]
    found = np.concatenate(parts)
    assert found.dtype == np.float32
    assert np.abs(found - family.expected).max() <= 1e-3 * np.abs(family.expected).max()
    assert (found.argmax(-1) == family.expected.argmax(-1)).all()


def test_a_rows_bits_are_those_of_its_prefix_however_the_text_is_cut(family: Any) -> None:
    decoder = family.decoder
    whole = logits_in_steps(decoder, family.token_ids, [len(family.token_ids)])
    for widths in CUTS:
        assert_same_bits(logits_in_steps(decoder, family.token_ids, widths), whole, f"cut at {widths}")
    first, rest = logits_after_rollback(decoder, family.token_ids, 30, [5, 6, 7, 8])
    assert_same_bits(np.concatenate([first, rest]), whole, "behind tokens that were taken back")


def test_a_rows_bits_are_those_of_its_path_in_a_forest(family: Any) -> None:
    decoder, ids = family.decoder, family.token_ids
    cache, other = KVCache(family.config), KVCache(family.config)
    decoder.forward(ids[:40], cache)
    decoder.forward(ids[7:20], other)
    tokens, parents = [3, 9, 4, 80, 17, 60], [-1, 0, 0, 1, 2, -1]
    of_tree, beside = decoder.forward_forest(
        [SequenceRows(tokens, cache, Tree(parents)), SequenceRows(ids[20:23], other)]
    )
    for row in range(len(tokens)):
        path, node = [], row
        while node >= 0:
            path, node = [tokens[node], *path], parents[node]
        alone = decoder.forward([*ids[:40], *path], KVCache(family.config), last_only=True)
        assert_same_bits(of_tree[row : row + 1], alone, f"row {row} of a tree")
    assert_same_bits(beside, decoder.forward(ids[7:23], KVCache(family.config))[13:], "another sequence")
    kept = [0, 1, 3]
    cache.keep(40, kept)
    behind = decoder.forward([11], cache)
    path = [*ids[:40], *(tokens[row] for row in kept), 11]
    assert_same_bits(behind, decoder.forward(path, KVCache(family.config), last_only=True), "behind a kept path")


def test_a_draft_that_skips_keys_which_others_read_skips_those_too(family_of: Callable[[str], Any]) -> None:
    family = family_of("gemma4")
    assert [layer.mixer.source for layer in family.config.layers] == [None, None, None, None, 2, 3]
    draft = family.decoder.variant(Skipped.parse("a2+m1", 6))
    assert [layer.skips_attention for layer in draft.layers] == [False, False, True, False, True, False]
    cache = KVCache(family.config)
    whole = draft.forward(family.token_ids[:12], cache)
    assert np.isfinite(whole).all()
    assert not cache.read(2, range(12))[0].any()  # nothing was written there
    assert (whole != family.decoder.forward(family.token_ids[:12], KVCache(family.config))).any()


def test_heads_of_two_sizes_share_a_cache_with_room_for_the_larger(family_of: Callable[[str], Any]) -> None:
    family = family_of("gemma4")
    cache = KVCache(family.config, capacity=1)
    family.decoder.forward(family.token_ids[:5], cache)
    small, large = (cache.read(layer, range(5))[0] for layer in (0, 1))
    assert small.shape == large.shape == (2, 5, 24)
    assert small[:, :, :16].all() and not small[:, :, 16:].any()
    assert large[0].all() and not large[1].any()
