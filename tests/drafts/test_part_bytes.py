"""Bytes by part, against the arrays themselves."""

from tiny_levels import target_level

from mxconv.drafts.draft_price import PartBytes
from mxconv.engine.skipped import Skipped

DECODER = target_level(num_layers=3).decoder


def test_bytes_are_those_of_the_arrays() -> None:
    found = PartBytes.of(DECODER)
    layer = DECODER.layers[1]
    own, inner = layer.attention, layer.mlp
    attention = sum(p.matrix.patterns.nbytes for p in (own.query, own.key, own.value, own.output))  # type: ignore[attr-defined]
    mlp = sum(p.matrix.patterns.nbytes for p in (inner.gate, inner.up, inner.down))  # type: ignore[attr-defined]
    assert found.attention == (attention,) * 3
    assert found.mlp == (mlp,) * 3
    assert found.head == DECODER.head.patterns.nbytes  # type: ignore[attr-defined]
    assert found.total() == 3 * (attention + mlp) + found.head
    assert found.total(Skipped.parse("1+a2", 3)) == attention + 2 * mlp + found.head
    assert PartBytes.of(DECODER, 4.25).total() * 16 / 4.25 == found.total()
