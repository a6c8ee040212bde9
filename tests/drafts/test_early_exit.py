"""Exits chosen while decoding: the choice follows what agrees and what it costs. Losslessness: `test_swift`."""

import numpy as np
import pytest
from tiny_levels import LoadedLevel, decoder_of, dense, norms, record, tiny_config, tiny_values

from mxconv.codecs.float16 import BF16
from mxconv.drafts.draft_price import DraftPrice, PartBytes, speedup
from mxconv.drafts.early_exit import ExitChoice
from mxconv.drafts.kinds import parse_draft, record_of
from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling

NUM_LAYERS = 8
PARTS = PartBytes((1.0,) * NUM_LAYERS, (2.0,) * NUM_LAYERS, 3.0)


def exit_of(skipped: Skipped) -> int:
    """The layer behind which it leaves."""
    assert skipped.attention == skipped.mlp == frozenset(range(min(skipped.attention), NUM_LAYERS))
    return min(skipped.attention)


def settled(agreements: dict[int, float], num_studies: int = 400, most: int = 8, seed: int = 0) -> ExitChoice:
    """After studies of 16 tokens."""
    random = np.random.default_rng(seed)
    choice = ExitChoice(DraftPrice(PARTS), NUM_LAYERS)
    for _ in range(num_studies):
        choice.choose(most)
        skipped = choice.to_study()
        assert skipped is not None
        choice.learn(skipped, int(random.binomial(16, agreements[exit_of(skipped)])), 16)
    return choice


@pytest.mark.parametrize(
    "agreements",
    [
        {1: 0.1, 2: 0.2, 3: 0.9, 4: 0.91, 5: 0.92, 6: 0.95, 7: 0.98},
        {1: 0.05, 2: 0.05, 3: 0.1, 4: 0.2, 5: 0.3, 6: 0.5, 7: 0.98},
        {1: 0.7, 2: 0.72, 3: 0.75, 4: 0.8, 5: 0.85, 6: 0.9, 7: 0.95},
    ],
    ids=["in the middle", "late", "early"],
)
@pytest.mark.parametrize("most", [1, 8])
def test_the_exit_and_the_length_of_most_tokens_for_the_time_are_chosen(
    agreements: dict[int, float], most: int
) -> None:
    price = DraftPrice(PARTS)
    worth = {e: speedup(rate, price.of(Skipped.behind(e, NUM_LAYERS)), most)[0] for e, rate in agreements.items()}
    choice = settled(agreements, most=most)
    skipped, length = choice.choose(most)
    assert worth[exit_of(skipped)] >= 0.97 * max(worth.values())
    assert 1 <= length <= most
    expected = speedup(agreements[exit_of(skipped)], price.of(skipped), most)[1]
    assert abs(length - expected) <= 2


def test_exits_without_promise_are_hardly_studied() -> None:
    asked = dict.fromkeys(range(1, NUM_LAYERS), 0)
    agreements = {1: 0.02, 2: 0.9, 3: 0.92, 4: 0.92, 5: 0.93, 6: 0.93, 7: 0.93}
    random = np.random.default_rng(1)
    choice = ExitChoice(DraftPrice(PARTS), NUM_LAYERS)
    for _ in range(200):
        choice.choose(8)
        skipped = choice.to_study()
        assert skipped is not None
        asked[exit_of(skipped)] += 1
        choice.learn(skipped, int(random.binomial(16, agreements[exit_of(skipped)])), 16)
    assert max(asked, key=lambda layer: asked[layer]) == 2
    assert asked[1] < 20
    assert asked[7] < 20


def test_another_kind_of_text_changes_the_exit() -> None:
    choice = settled({layer: 0.95 if layer >= 2 else 0.1 for layer in range(1, NUM_LAYERS)})
    assert exit_of(choice.choose(8)[0]) == 2
    for _ in range(400):
        skipped = choice.to_study()
        assert skipped is not None
        choice.learn(skipped, 15 if exit_of(skipped) >= 6 else 1, 16)
    assert exit_of(choice.choose(8)[0]) == 6


def test_a_target_whose_last_layers_do_nothing_is_left_before_them() -> None:
    config = tiny_config(num_layers=6, max_position_embeddings=400)
    values = tiny_values(config, 5)
    for layer in (3, 4, 5):
        for part in ("self_attn.o_proj", "mlp.down_proj"):
            values[f"model.layers.{layer}.{part}.weight"][:] = 0
    target = LoadedLevel(record("target"), Decoder(config, ModelWeights(dense(values, BF16), norms(config)), "target"))
    draft = LoadedLevel(record_of(parse_draft("early-exit,confidence=0"), "exit"), decoder_of(target))
    hierarchy = Hierarchy([target, draft])
    for number in range(3):
        generation = hierarchy.generate([number, 1, 2], 100, selection=Selection(Sampling(1.0), seed=4))
    skipped, _ = hierarchy._chain._variants[1].choice.choose(8)
    assert str(skipped) == "3-5"
    assert generation.trace.statistics[1].acceptance_rate == 1.0


def test_a_target_without_an_exit_before_its_end_is_refused() -> None:
    with pytest.raises(ModelError, match=r"^skipped layers: an exit behind layer 1 of 1; 1 to 0 are required\."):
        ExitChoice(DraftPrice(PartBytes((1.0,), (1.0,), 1.0)), 1)
