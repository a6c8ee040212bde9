"""Whatever drafts, in chains or trees, greedily, drawn or with penalties: the target's own tokens and logits."""

from dataclasses import replace
from pathlib import Path

import pytest
from ngram_tables import write_table
from plug_ins import PAPERS, RECYCLING, STAND
from tiny_levels import (
    VOCAB_SIZE,
    by_hand,
    decoder_of,
    look_up,
    noisy_copy,
    self_draft,
    speculate,
    target_level,
)

from mxconv.package.ngram_table import read_ngram_table
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY, MAX_SEED, Selection
from mxconv.text.distribution import Penalties, Sampling

PENALTIES = Penalties(1.2, 0.4, 0.3, ((7, 3.0), (11, -5.0)))
SELECTIONS = (
    GREEDY,
    Selection(Sampling(0.8, top_p=0.95), "coupled", 7),
    Selection(Sampling(1.5, top_k=9), "coupled", MAX_SEED),
    Selection(penalties=PENALTIES),
    Selection(Sampling(0.8, min_p=0.02), seed=5, penalties=PENALTIES),
)
PROMPTS = ([1, 2, 3, 1, 2, 3, 1, 2], [5])
DRAFTS = {
    "copy": [self_draft()],
    "copy with a cache of its own": [self_draft(shares_cache=False)],
    "copy and model": [self_draft(), noisy_copy()],
    "three models": [self_draft(), noisy_copy(noise=0.3), noisy_copy(noise=1.0, name="noisier")],
    "copy, model and look-up": [self_draft(), noisy_copy(name="small"), look_up("prompt-lookup")],
    "model and look-up": [noisy_copy(), look_up(RECYCLING)],
    "prompt-lookup": [look_up("prompt-lookup")],
    "ngram": [look_up("ngram")],
    "recycling": [look_up(RECYCLING)],
    "stand": [look_up(STAND)],
    "merged": [look_up(f"{PAPERS / 'rasd.py'}:MergedKind")],
}


@pytest.mark.parametrize("tree", ["chain", 3, 12, 63, "auto"])
@pytest.mark.parametrize("name", DRAFTS)
def test_tokens_and_logits_are_the_targets(name: str, tree: int | str, tmp_path: Path) -> None:
    levels = [target_level(), *DRAFTS[name]]
    if name == "ngram":
        table = read_ngram_table(write_table(tmp_path / "table", "0" * 64, vocab_size=VOCAB_SIZE))
        levels[1] = replace(levels[1], table=table)
    lengths, confidence = ("auto", None) if tree == "auto" else ([4], [0.0])
    hierarchy = Hierarchy(levels, lengths, confidence, tree)  # type: ignore[arg-type]
    num_nodes = num_proposed = 0
    for selection in SELECTIONS:
        for prompt in PROMPTS:
            found, generation = speculate(hierarchy, prompt, 24, (), selection)
            assert found == by_hand(decoder_of(levels[0]), prompt, 24, (), selection)
            num_nodes += generation.trace.statistics[1].num_nodes
            num_proposed += generation.trace.statistics[1].num_proposed
    assert tree == "auto" or num_proposed > 0
    assert num_nodes > num_proposed or tree in ("chain", 3, "auto") or name == "prompt-lookup"  # trees, not chains


def test_penalties_choose_other_tokens() -> None:
    texts = [by_hand(decoder_of(target_level()), PROMPTS[0], 24, (), selection) for selection in SELECTIONS]
    assert texts[3].token_ids != texts[0].token_ids
