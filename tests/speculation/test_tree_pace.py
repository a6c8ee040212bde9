"""The adaptive pace on a simulated machine with a draft that grows trees: as large as they pay, and none where not."""

from collections.abc import Callable

import numpy as np
import pytest

from mxconv.speculation.pacing.adaptive_pace import AdaptivePace
from mxconv.speculation.pacing.pace import Choice, Outcome

NODE_SECONDS = 0.0005
DEPTH_SECONDS = 0.05  # of a model's pass
Price = Callable[[int], float]  # of a pass over so many rows, a plain one being 1


def cheap(rows: int) -> float:
    return 1 + 0.005 * (rows - 1)


def dear(rows: int) -> float:
    return 1 + 0.4 * (rows - 1)


def cheap_up_to_eight(rows: int) -> float:
    return 1 + 0.005 * (rows - 1) + 0.3 * max(rows - 8, 0)


def run(
    pace: AdaptivePace,
    price: Price,
    right: float,
    honest: bool = True,
    num_tokens: int = 1500,
    is_model: bool = False,
) -> tuple[float, float]:
    """Decode; each node's two continuations stand with chances `right` and half of what is left.

    A model goes on below a depth while the chances there sum up to the floor.

    Returns:
        Tokens a second, and nodes a round, of the later half.
    """
    random = np.random.default_rng(4)
    told = right if honest else 0.99
    seconds, tokens, nodes, rounds = 0.0, 0, 0, 0
    pace.learn(Choice(0, 0), Outcome(0, 0, 20, 0.0, 4.0))
    while tokens < num_tokens:
        choice = pace.choose(num_tokens - tokens) if num_tokens > tokens + 1 else Choice(0, 0)
        proposed, accepted, chances, depth = 0, 0, [], choice.num_tokens
        if choice.floors:
            if choice.floor is not None:
                sums = [(told + (1 - told) / 2) ** above for above in range(choice.num_tokens)]
                depth = max(sum(total >= choice.floor for total in sums), 1)
            chances = grown(told, len(choice.floors), choice.floors, depth)
            proposed, depth = len(chances), depth_of(len(chances))
            accepted = sum(random.random() < right + (1 - right) / 2 for _ in range(depth_of(proposed)))
        elif choice.num_tokens:
            proposed = choice.num_tokens
            while accepted < proposed and random.random() < right:
                accepted += 1
        took = price(1 + proposed)
        drafting = DEPTH_SECONDS * depth if is_model else NODE_SECONDS * proposed
        pace.learn(choice, Outcome(proposed, accepted, 1 + proposed, drafting, took, chances, depth))
        if tokens > num_tokens / 2:
            seconds += took + drafting
            nodes, rounds = nodes + proposed, rounds + 1
        tokens += 1 + accepted
    return num_tokens / 2 / seconds, nodes / rounds


def depth_of(num_nodes: int) -> int:
    """Of a whole binary tree of so many nodes."""
    return int(np.log2(num_nodes + 1)) if num_nodes else 0


def grown(told: float, most: int, floors: object, most_depth: int) -> list[float]:
    chances: list[float] = []
    level = [1.0]
    for _ in range(min(most_depth, 5)):
        level = [chance * part for chance in level for part in (told, (1 - told) / 2)]
        chances += level
    assert isinstance(floors, list)
    kept = sorted(chances, reverse=True)[:most]
    return [chance for chance, floor in zip(kept, floors, strict=False) if chance >= floor]


def test_trees_are_large_where_rows_are_cheap_and_stop_where_they_become_dear() -> None:
    large = run(AdaptivePace(1, growers={0: False}), cheap, 0.6)
    knee = run(AdaptivePace(1, growers={0: False}), cheap_up_to_eight, 0.6)
    small = run(AdaptivePace(1, growers={0: False}), dear, 0.6)
    assert large[1] > knee[1] > small[1]
    assert large[1] > 9 and 2 < knee[1] < 9 and small[1] < 2


@pytest.mark.parametrize("price", [cheap, dear, cheap_up_to_eight])
@pytest.mark.parametrize("honest", [True, False])
def test_useless_trees_cost_no_more_than_a_few_percent(price: Price, honest: bool) -> None:
    rate, _ = run(AdaptivePace(1, growers={0: False}), price, 0.0 if honest else 0.001, honest)
    assert rate > 0.97


def test_a_models_trees_beat_its_chains_where_rows_are_cheap() -> None:
    trees, nodes = run(AdaptivePace(1, growers={0: True}), cheap, 0.6, is_model=True)
    chains, _ = run(AdaptivePace(1), cheap, 0.6, is_model=True)
    assert trees > 1.1 * chains
    assert nodes > 6


@pytest.mark.parametrize("price", [cheap, dear])
def test_useless_trees_of_a_model_cost_no_more_than_a_few_percent(price: Price) -> None:
    rate, _ = run(AdaptivePace(1, growers={0: True}), price, 0.0, is_model=True)
    assert rate > 0.97


def test_a_pace_without_growers_asks_for_no_tree() -> None:
    pace = AdaptivePace(1)
    pace.learn(Choice(0, 0), Outcome(0, 0, 1, 0.0, 1.0))
    for _ in range(50):
        choice = pace.choose(100)
        assert not choice.floors
        pace.learn(choice, Outcome(choice.num_tokens, 0, 1 + choice.num_tokens, 0.001, 1.1))


def test_a_tree_has_no_more_nodes_than_it_is_allowed() -> None:
    pace = AdaptivePace(1, growers={0: False}, most_nodes=5)
    _, nodes = run(pace, cheap, 0.6)
    assert 1 < nodes <= 5


def test_a_model_that_proposes_nothing_is_charged_for_the_pass_that_it_took() -> None:
    pace, num_asked, num_rounds = AdaptivePace(1, growers={0: True}), 0, 800
    pace.learn(Choice(0, 0), Outcome(0, 0, 20, 0.0, 4.0))
    for _ in range(num_rounds):
        choice = pace.choose(1000)
        num_asked += bool(choice.floors)
        pace.learn(choice, Outcome(0, 0, 1, 0.3 if choice.floors else 0.0, 1.0))
    assert 3 < num_asked < 0.012 * num_rounds / 0.3
