"""P-EAGLE heads against the package that defines their format, and what a head must have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from eagle3_heads import p_eagle_config

from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.eagle3 import target_tokens
from mxconv.drafts.p_eagle import PEagle, PEagleConfig
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.errors import ModelError
from mxconv.kernels.engine import choose_engine, native_names

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "p-eagle"
KERNELS = ["numpy", *native_names()[:1]]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", sorted(path.name for path in VECTORS.iterdir()))
def test_proposals_are_those_of_the_speculators_package(case: str, kernel: str) -> None:
    """After every prefix of a text, by one pass over its pairs and the masked ones."""
    config, tensors = PEagleConfig.from_file(VECTORS / case / "config.json"), open_checkpoint(VECTORS / case).tensors
    tokens = target_tokens(tensors, config.draft_vocab_size, config.vocab_size, "head")
    weights = dense_weights(tensors, make=Matrices(choose_engine(kernel)))
    head = PEagle(config, weights, tokens, ids := config.layers_of(8), "head")
    vectors = safetensors.numpy.load_file(VECTORS / case / "expected.safetensors")
    states, text = vectors["states"][[ids.index(layer) for layer in head.reads.layers]], vectors["tokens"].tolist()
    num_compared = 0
    for place, expected in enumerate(vectors["logits"]):
        rows = expected[np.isfinite(expected).all(axis=1)]
        num_masks = len(rows) - 1
        features = np.concatenate([head.fuse(states[:, : place + 1]), np.repeat(head.masked, num_masks, axis=0)])
        taken = [*text[1 : place + 2], *[config.mask_token_id] * num_masks]
        made = head.logits(head.advance(features, taken, head.new_cache())[place:])
        np.testing.assert_allclose(made[:, head.tokens], rows, rtol=1e-5, atol=1e-5)
        num_compared += len(rows)
    assert num_compared == 8 + 7 + 6 + 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"speculators_model_type": "eagle3"}, 'speculators_model_type is "eagle3"; mxconv supports peagle'),
        ({"mask_token_id": None}, "mask_token_id is null; a token from 0 to 59 is required"),
        ({"mask_token_id": 60}, "mask_token_id is 60; a token from 0 to 59 is required"),
        (
            {"speculators_config": {"proposal_methods": [{"speculative_tokens": 0}]}},
            "proposal_methods: speculative_tokens is 0; an integer from 1 to",
        ),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(p_eagle_config(60, 64, changes)))
    with pytest.raises(ModelError, match=message):
        PEagleConfig.from_file(path)


@pytest.mark.parametrize(
    ("methods", "num_tokens"),
    [(None, 8), ([], 8), ([{"speculative_tokens": 5}], 5), ([{"speculative_tokens": 99}], 64)],
)
def test_a_head_proposes_as_many_tokens_as_its_file_says(methods: Any, num_tokens: int) -> None:
    values = p_eagle_config(60, 64, {"speculators_config": {"proposal_methods": methods}})
    assert PEagleConfig.from_dict(values).sizes.most_tokens == num_tokens
