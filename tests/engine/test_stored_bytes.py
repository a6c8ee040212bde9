"""Bytes of packages whose experts are stacked in one tensor."""

from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize
from stacked_models import write_random_model

from mxconv.cost.counts import multiplied_weights
from mxconv.cost.levels import Workload, level_count
from mxconv.cost.package_levels import package_levels
from mxconv.engine.stored_bytes import checkpoint_bytes, head_bytes, package_bytes
from mxconv.package.package import Package
from mxconv.report.sources import open_weights


def test_stacked_experts_are_counted_at_what_is_stored_of_them(tmp_path: Path) -> None:
    source = write_random_model(tmp_path / "m", "gpt_oss")
    quantize(source, tmp_path / "p")
    with Package(tmp_path / "p") as package:
        target, draft = package_levels(package)
    a = target.architecture
    assert a is not None and target.num_bytes is not None and draft.num_bytes is not None
    weights = multiplied_weights(a, float("inf"))  # of all experts
    assert target.num_bytes == checkpoint_bytes(source) == pytest.approx(2 * weights, rel=0.01)  # biases are 0.2%
    head = a.vocab_size * a.hidden_size
    expected = 4.25 / 8 * (weights - head) + 8.25 / 8 * head
    assert draft.num_bytes == pytest.approx(expected, rel=0.02)  # routers stay in 16 bits
    for num_tokens in (1, 4):  # whose passes read the experts that they choose
        found = level_count(target, Workload(), num_tokens)
        assert found.weight_bytes + found.scale_bytes == pytest.approx(2 * multiplied_weights(a, num_tokens), rel=0.01)


@pytest.mark.parametrize(
    ("codec", "lm_head", "bits", "kind", "tied"),
    [
        ("mxfp4", None, 8.25, "MXINT8", False),
        ("mxfp4", "quantize", 4.25, "4 bits", True),
        ("mxfp4", "keep", 16, "16 bits", False),
        ("bsfp", "exact", None, "all bits of the exact weights", True),
        ("bsfp", None, 4.125, "4 bits", False),
    ],
)
def test_the_head_of_a_draft_has_the_bits_that_were_asked_for(
    tmp_path: Path, codec: str, lm_head: str | None, bits: float | None, kind: str, tied: bool
) -> None:
    source = write_tiny_llama(tmp_path / "m", tie_word_embeddings=tied, hidden_size=128)
    quantize(source, tmp_path / "p", codec=codec, lm_head=lm_head, segments="paper" if codec == "bsfp" else "fitted")
    with Package(tmp_path / "p") as package:
        head, draft = head_bytes(package, is_draft=True), package_bytes(package, is_draft=True)
        assert head == (96 * 128 * bits / 8 if bits else head_bytes(package, is_draft=False))
        assert 96 * 128 / 2 < head < draft
        with open_weights(str(tmp_path / "p")) as weights:
            share = f"the output head is {head:,} of the {draft:,} bytes that a pass of the draft reads "
            assert f"{share}({head / draft:.0%}): {kind}." in weights.notes
