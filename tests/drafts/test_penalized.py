"""Texts with penalties: whatever drafts there are, the tokens that plain decoding with transformers' rules gives."""

import numpy as np
import pytest
from chi_square import FALSE_ALARM, tail_of_counts
from markov_levels import markov, pairs_of, tables
from tiny_levels import noisy_copy, speculate, target_level

from mxconv.errors import ModelError
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.path_rules import PathPenalties, PathRules
from mxconv.speculation.selection import Accept, Request, Selection
from mxconv.text.distribution import Penalties, Sampling, distribution

PROMPT = [3, 1, 4, 1, 5, 9]
PENALTIES = Penalties(1.2, 0.4, 0.3, ((7, 3.0), (11, -5.0)))
SELECTIONS = [Selection(penalties=PENALTIES), Selection(Sampling(0.8, min_p=0.02), seed=5, penalties=PENALTIES)]


def test_drafts_propose_under_the_same_penalties() -> None:
    """A copy of the target agrees with it always, where it would not without them; a tree may lack a branch."""
    levels = [target_level(), noisy_copy(0, 0.0)]
    for tree, least in (("chain", 1.0), (12, 0.9)):
        for selection in SELECTIONS:
            _, generation = speculate(Hierarchy(levels, [4], [0.0], tree), PROMPT, 40, (), selection)  # type: ignore[arg-type]
            rate = generation.trace.statistics[1].acceptance_rate
            assert rate is not None and rate >= least


@pytest.mark.parametrize("accept", ["rejection", "block"])
@pytest.mark.parametrize("num_nodes", [0, 8], ids=["chain", "tree"])
def test_rejection_keeps_the_distribution_of_penalized_logits(num_nodes: int, accept: Accept) -> None:
    """The first two tokens after token 0: what the second is drawn from depends on the first."""
    made, sampling = tables()[:2], Sampling()
    penalties = Penalties(1.5, 0.4, 0.3, ((1, 0.5),))
    levels = [markov(f"level {number}", table) for number, table in enumerate(made)]
    hierarchy = Hierarchy(levels, [3], [0.0], num_nodes)
    rule = Selection(sampling, accept, 99, penalties).acceptance(1)
    target = hierarchy.link(hierarchy.begin().trace.statistics, rule)
    size = len(made[0])
    pairs = pairs_of(target, size, 1000)
    first = distribution(PathRules(PathPenalties(penalties, 1)).row(made[0][0], [0]), sampling)
    second = [
        distribution(PathRules(PathPenalties(penalties, 1)).row(made[0][t], [0, t]), sampling) for t in range(size)
    ]
    assert tail_of_counts(pairs.ravel(), (first[:, None] * np.array(second)).ravel()) > FALSE_ALARM
    plain = np.array([distribution(row[:size], sampling) for row in made[0]])
    assert tail_of_counts(pairs.ravel(), (plain[0][:, None] * plain).ravel()) < FALSE_ALARM


def test_a_bias_outside_of_the_vocabulary_is_refused() -> None:
    hierarchy = Hierarchy([target_level()])
    selection = Selection(penalties=Penalties(logit_bias=((10_000, 1.0),)))
    with pytest.raises(ModelError, match="logit_bias: token id 10000; ids from 0 to"):
        hierarchy.generate(PROMPT, 4, selection=selection)
    with pytest.raises(ModelError, match="logit_bias: token id 10000; ids from 0 to"):
        Engine(hierarchy).submit(Request(PROMPT, 4, (), selection))
