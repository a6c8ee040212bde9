"""Counts, rates, a trace whose entries add up, and the trees that it records."""

from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
from plug_ins import RECYCLING
from tiny_levels import assert_consistent, by_hand, decoder_of, look_up, noisy_copy, self_draft, target_level

from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.proposal import Proposal
from mxconv.speculation.selection import GREEDY, Request, Selection
from mxconv.speculation.statistics import Generation, LevelStatistics, RoundTree, TraceEntry
from mxconv.text.distribution import Sampling


def test_the_acceptance_rate_is_accepted_over_proposed_and_none_where_nothing_was() -> None:
    assert LevelStatistics("a", num_proposed=8, num_accepted=6).acceptance_rate == 0.75
    assert LevelStatistics("a", num_proposed=3).acceptance_rate == 0.0
    assert LevelStatistics("target", num_forwards=9).acceptance_rate is None


def test_a_forward_pass_is_counted_and_timed_even_when_it_fails() -> None:
    level = LevelStatistics("a")
    with level.timed_pass():
        pass
    first = level.seconds
    assert (level.num_forwards, first > 0) == (1, True)
    with pytest.raises(ValueError, match="no"), level.timed_pass():
        raise ValueError("no")
    assert level.num_forwards == 2
    assert level.seconds > first


def test_proposals_are_counted_by_place() -> None:
    level = LevelStatistics("a")
    level.count(8, 3, 2)
    level.count(4, 4, 0)
    level.count(1, 1, 1)
    level.count(5, 0, 0)
    assert (level.num_asked, level.num_proposed, level.num_accepted) == (18, 8, 3)
    assert level.proposed_by_position == [3, 2, 2, 1]
    assert level.accepted_by_position == [2, 1]


def test_nodes_of_trees_are_counted_by_depth() -> None:
    level = LevelStatistics("a")
    level.count(8, 3, 2, widths=[4, 2, 1])
    level.count(2, 2, 1)
    level.count(1, 0, 0, widths=[])
    assert (level.num_proposed, level.num_nodes, level.num_accepted) == (5, 9, 3)
    assert level.nodes_by_depth == [5, 3, 1]
    assert level.proposed_by_position == [2, 2, 1]


SELECTIONS = (
    GREEDY,
    Selection(Sampling(0.8, top_p=0.95), "coupled", 7),
    Selection(Sampling(0.8, top_p=0.95), "rejection", 7),
    Selection(Sampling(0.8, top_p=0.95), "block", 7),
)
HIERARCHIES: dict[str, list[LoadedLevel]] = {
    "look-up": [target_level(), look_up(RECYCLING)],
    "model": [target_level(), noisy_copy()],
    "model with a look-up": [target_level(), self_draft(), look_up("prompt-lookup")],
}


def recorded(hierarchy: Hierarchy, prompt: Sequence[int], selection: Selection) -> Generation:
    generation = hierarchy.begin()
    generation.trace.records_trees = True
    for _ in hierarchy.stream(Request(prompt, 30, (), selection), generation):
        pass
    if not hierarchy.adaptive:  # or the target may have asked the second draft
        assert_consistent(generation)
    return generation


def rounds_of(generation: Generation) -> list[list[TraceEntry]]:
    entries, count = generation.trace.entries, len(generation.trace.statistics)
    return [entries[begin : begin + count] for begin in range(0, len(entries), count)]


@pytest.mark.parametrize(
    ("kind", "lengths", "selection"),
    [
        (kind, lengths, SELECTIONS[(turn + shift) % 4])
        for turn, kind in enumerate(HIERARCHIES)
        for shift, lengths in enumerate(("auto", "given", "given", "given"))
    ],
)
def test_the_trees_of_a_run_tell_its_text_and_its_counts(kind: str, lengths: str, selection: Selection) -> None:
    levels = HIERARCHIES[kind]
    hierarchy = Hierarchy(levels, "auto", [0.0]) if lengths == "auto" else Hierarchy(levels, [6], [0.0], 16)
    generation = recorded(hierarchy, [1, 2, 3, 1, 2, 3, 1, 2], selection)
    if selection.accept == "coupled":
        expected = by_hand(decoder_of(levels[0]), [1, 2, 3, 1, 2, 3, 1, 2], 30, (), selection)
        assert generation.token_ids == expected.token_ids
    written: list[int] = []
    depths: dict[str, Counter[int]] = defaultdict(Counter)
    for target, *drafts in rounds_of(generation):
        assert all(draft.tree is None for draft in drafts)
        tree = target.tree
        assert tree is not None
        assert [tree.tokens[node] for node in tree.path] == tree.emitted[:-1]
        assert [tree.parents[node] for node in tree.path] == [-1, *tree.path][: len(tree.path)]
        assert len(tree.probabilities) in (0, len(tree.tokens))
        names = tree.draft.split(" + ") if tree.draft is not None else []  # a model's tree with what is looked up
        asked = [draft for draft in drafts if draft.level in names]
        assert len(asked) == len(names)
        if len(drafts) == 1:
            assert (drafts[0].num_nodes, drafts[0].num_accepted) == (len(tree.tokens), len(tree.path))
        elif asked:  # what a draft says to a draft counts too
            assert sum(draft.num_nodes for draft in asked) >= len(tree.tokens)
        else:
            assert tree.tokens == []
        places: list[int] = []
        for parent in tree.parents:
            places.append(places[parent] + 1 if parent >= 0 else 0)
        if tree.draft is not None:
            depths[tree.draft].update(places)
        written += tree.emitted
    assert written == generation.token_ids
    if len(levels) == 2:
        draft = generation.trace.statistics[1]
        assert draft.nodes_by_depth == [depths[draft.name][depth] for depth in range(len(depths[draft.name]))]
        assert sum(draft.nodes_by_depth) == draft.num_nodes
        assert draft.num_nodes > 0 or lengths == "auto"  # which may find that drafts do not pay
        if kind == "look-up" and lengths == "given":
            assert draft.nodes_by_depth[0] > draft.proposed_by_position[0]  # trees, not chains


def test_no_tree_is_kept_where_nobody_asks() -> None:
    hierarchy = Hierarchy(HIERARCHIES["look-up"], [6], [0.0], 16)
    generation = hierarchy.generate([1, 2, 3], 30)
    assert all(entry.tree is None for entry in generation.trace.entries)
    assert all(level.trees is None for level in generation.trace.statistics)
    assert generation.trace.statistics[1].num_nodes > 0


def test_a_chain_is_a_tree() -> None:
    chain = Proposal([5, 5, 7])
    tree = RoundTree("a", chain.tokens, chain.parents, chain.probabilities, [5, 5, 9])
    assert (list(tree.parents), tree.path) == ([-1, 0, 1], [0, 1])
    assert RoundTree(None, [], Proposal([]).parents, [], [3]).path == []
