"""A draft's acceptance on a text of the target, against speculation written out token by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from tiny_levels import MAX_POSITIONS, greedy_by_hand, self_draft, target_level

from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.sink_window import SinkWindow
from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError
from mxconv.speculation.target_text import TargetText

PROMPT = [3, 1, 4, 1, 5, 9, 2]
TARGET = target_level(num_layers=3).decoder
COPY = self_draft(num_layers=3).decoder
DRAFTS = {
    "itself": TARGET,
    "layer 1": TARGET.variant(Skipped.parse("1", 3)),
    "attention 1": TARGET.variant(Skipped.parse("a1", 3)),
    "MLP 2": TARGET.variant(Skipped.parse("m2", 3)),
    "everything": TARGET.variant(Skipped.parse("0-2", 3)),
    "window": TARGET.variant(sink_window=SinkWindow(1, 4)),
    "4 bits": COPY,
    "4 bits without an MLP": COPY.variant(Skipped.parse("m1", 3)),
}


@dataclass
class ByHand:
    num_rounds: int = 0
    num_proposed: int = 0
    num_accepted: int = 0


def speculate(draft: Decoder, prompt: Sequence[int], max_new_tokens: int, num_draft_tokens: int) -> ByHand:
    """Greedy speculation on one cache: the draft goes token by token, the target in one pass."""
    cache = KVCache(TARGET.config)
    text = [*prompt, int(TARGET.forward(prompt, cache)[-1].argmax())]
    counts = ByHand()
    while (wanted := len(prompt) + max_new_tokens - len(text)) > 0:
        length = cache.length
        proposed: list[int] = []
        for _ in range(min(num_draft_tokens, wanted - 1)):
            proposed.append(int(draft.forward([[*text, *proposed][-1]], cache)[-1].argmax()))
        cache.truncate(length)
        chosen = TARGET.forward([text[-1], *proposed], cache).argmax(-1)
        accepted = 0
        while accepted < len(proposed) and proposed[accepted] == chosen[accepted]:
            accepted += 1
        cache.truncate(length + 1 + accepted)
        text += [int(token) for token in chosen[: accepted + 1]]
        counts.num_rounds += 1
        counts.num_proposed += len(proposed)
        counts.num_accepted += accepted
    return counts


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("num_draft_tokens", [1, 3, 8, 50])
def test_counts_are_those_of_speculation(name: str, num_draft_tokens: int) -> None:
    for max_new_tokens in (1, 2, 3, 30):
        found = TargetText.write(TARGET, PROMPT, max_new_tokens).drafted_by(DRAFTS[name], num_draft_tokens)
        expected = speculate(DRAFTS[name], PROMPT, max_new_tokens, num_draft_tokens)
        assert found.num_tokens == max_new_tokens - 1 == found.num_rounds + found.num_accepted
        for field in ("num_rounds", "num_proposed", "num_accepted"):
            assert getattr(found, field) == getattr(expected, field), field


def test_the_drafts_of_this_test_differ() -> None:
    text = TargetText.write(TARGET, PROMPT, 30)
    accepted = {name: text.drafted_by(draft, 4).num_accepted for name, draft in DRAFTS.items()}
    assert accepted["itself"] == 23  # 29 tokens in rounds of five: the last of a round is the target's own
    assert len(set(accepted.values())) >= 4


def test_the_text_and_the_cache_are_those_of_plain_decoding_and_stay_so() -> None:
    text = TargetText.write(TARGET, PROMPT, 20)
    assert text.tokens == [*PROMPT, *greedy_by_hand(TARGET, PROMPT, 20).token_ids]
    assert text.num_prompt_tokens == len(PROMPT)
    assert text.cache.length == len(text.tokens) - 1
    before = [array.copy() for array in text.cache.arrays]
    results = [text.drafted_by(draft, 5) for _ in range(2) for draft in DRAFTS.values()]
    assert results[: len(DRAFTS)] == results[len(DRAFTS) :]
    assert text.cache.length == len(text.tokens) - 1
    for found, expected in zip(text.cache.arrays, before, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_text_ends_at_a_stop_token_and_at_the_last_position() -> None:
    whole = greedy_by_hand(TARGET, PROMPT, 100).token_ids
    text = TargetText.write(TARGET, PROMPT, 100)
    assert text.tokens == [*PROMPT, *whole]
    assert text.cache.length == MAX_POSITIONS
    stop = whole[4]
    stopped = TargetText.write(TARGET, PROMPT, 100, [stop])
    assert stopped.tokens == [*PROMPT, *whole[: whole.index(stop) + 1]]


def test_a_rate_needs_proposals() -> None:
    assert TargetText.write(TARGET, PROMPT, 1).drafted_by(TARGET, 4).acceptance_rate is None
    assert TargetText.write(TARGET, PROMPT, 12).drafted_by(TARGET, 4).acceptance_rate == 1.0


def test_a_draft_of_another_architecture_and_prompts_that_cannot_be_evaluated_are_refused() -> None:
    with pytest.raises(ModelError, match="a KV cache of 3 layers"):
        TargetText.write(TARGET, PROMPT, 9).drafted_by(target_level(num_layers=2).decoder, 4)
    with pytest.raises(ModelError, match="0 tokens to evaluate"):
        TargetText.write(TARGET, [], 9)
    with pytest.raises(ModelError, match=f"{MAX_POSITIONS + 2} positions; the model has {MAX_POSITIONS}"):
        TargetText.write(TARGET, [1] * (MAX_POSITIONS + 2), 9)
