"""What a hierarchy is told: levels, lengths, thresholds, prompts."""

import pytest
from tiny_levels import (
    MAX_POSITIONS,
    VOCAB_SIZE,
    levels_of,
    speculate,
)

from mxconv.drafts.kind import LoadedLevel
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy

PROMPT = [3, 1, 4, 1, 5, 9]


def test_a_hierarchy_needs_a_target() -> None:
    with pytest.raises(ModelError, match=r"^hierarchy: 0 levels; at least a target is required\.$"):
        Hierarchy([])


@pytest.mark.parametrize("flag", ["--num-draft-tokens", "--confidence"])
def test_settings_are_one_for_all_drafts_or_one_each(flag: str) -> None:
    name = flag[2:].replace("-", "_")
    levels = levels_of(3)
    for numbers in ([1], [1, 1]):
        assert len(getattr(Hierarchy(levels, **{name: numbers}), name)) == 2
    message = f"^{flag}: 3 numbers for 2 draft levels; one for all, or one each, is required.$"
    with pytest.raises(ModelError, match=message):
        Hierarchy(levels, **{name: [1, 1, 1]})
    assert getattr(Hierarchy(levels[:1], **{name: [1]}), name) == []
    with pytest.raises(ModelError, match=f"^{flag}: 2 numbers for 0 draft levels"):
        Hierarchy(levels[:1], **{name: [1, 1]})


def test_settings_come_from_the_manifest_or_else_from_the_defaults() -> None:
    target, draft, small = levels_of(3)
    chosen = draft.record.model_copy(update={"num_draft_tokens": 3, "confidence": 0.0})
    hierarchy = Hierarchy([target, LoadedLevel(chosen, draft.decoder), small])
    assert hierarchy.num_draft_tokens == [3, 8]
    assert hierarchy.confidence == [0.0, 0.4]


REFUSED = {
    "no prompt": ([], 5, r"^prompt: 0 tokens; at least one is required\. Give a text\.$"),
    "a prompt that is too long": (
        [1] * (MAX_POSITIONS + 1),
        5,
        r"^prompt: 41 tokens; the target has 40 positions \(max_position_embeddings\)\. Shorten it\.$",
    ),
    "no tokens wanted": (PROMPT, 0, r"^max_new_tokens: 0; at least 1 is required\.$"),
    "a token the target does not know": ([VOCAB_SIZE], 5, "token id 24; ids from 0 to 23 are required"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("num_levels", [1, 2, 3])
def test_prompts_that_cannot_be_continued_are_refused(case: str, num_levels: int) -> None:
    prompt, max_new_tokens, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        Hierarchy(levels_of(num_levels)).generate(prompt, max_new_tokens)


def test_speed_is_tokens_over_seconds() -> None:
    _, generation = speculate(Hierarchy(levels_of(1)), PROMPT, 4)
    assert generation.tokens_per_second == 4 / generation.seconds
