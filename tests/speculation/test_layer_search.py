"""The search of layers to skip, over scores that are known and over a model."""

import math
from collections.abc import Callable
from itertools import combinations

import pytest
from tiny_levels import target_level

from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError
from mxconv.speculation.self_drafts.layer_search import layer_skip_speedup, search_layers
from mxconv.speculation.self_drafts.part_bytes import PartBytes
from mxconv.speculation.target_text import TargetText


def parts_of(skipped: Skipped) -> set[tuple[str, int]]:
    return {("a", layer) for layer in skipped.attention} | {("m", layer) for layer in skipped.mlp}


def counted(score: Callable[[Skipped], float]) -> tuple[Callable[[Skipped], float], list[Skipped]]:
    calls: list[Skipped] = []

    def count(skipped: Skipped) -> float:
        calls.append(skipped)
        return score(skipped)

    return count, calls


def valley(skipped: Skipped) -> float:
    """Every part costs something but a few; one skipped alone loses, all those few together win."""
    cheap = {("a", 2), ("a", 5), ("m", 4), ("a", 6)}
    parts = parts_of(skipped)
    return len(parts & cheap) ** 2 * 0.2 - len(parts & cheap) * 0.5 - len(parts - cheap)


def test_sets_that_only_pay_together_are_found() -> None:
    search = search_layers(valley, 8, 60)
    assert str(search.best.skipped) == "a2+a5-6+m4"
    assert search.best.score == pytest.approx(1.2)
    assert all(valley(Skipped(frozenset([layer]))) < valley(Skipped()) for layer in range(8))


@pytest.mark.parametrize("num_evaluations", [1, 2, 3, 7, 30, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_set_is_scored_once_as_often_as_allowed_and_the_best_is_returned(num_evaluations: int, seed: int) -> None:
    score, calls = counted(lambda skipped: math.sin(sum(map(ord, str(skipped)))))
    search = search_layers(score, 10, num_evaluations, seed)
    assert len(calls) == len(set(calls)) == num_evaluations
    assert [trial.skipped for trial in search.trail] == calls
    assert calls[0] == Skipped()
    assert search.best.score == max(trial.score for trial in search.trail)
    assert not any({0, 9} & (skipped.attention | skipped.mlp) for skipped in calls)


def test_the_same_seed_gives_the_same_trail_and_another_one_another() -> None:
    trails = [search_layers(valley, 8, 50, seed).trail for seed in (3, 3, 4)]
    assert trails[0] == trails[1] != trails[2]


def test_a_small_model_is_searched_whole() -> None:
    score, calls = counted(lambda skipped: -len(skipped))
    assert search_layers(score, 3, 1000).best.skipped == Skipped()
    assert set(map(str, calls)) == {"none", "a1", "m1", "1"}


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_model_of_first_and_last_layers_skips_nothing(num_layers: int) -> None:
    score, calls = counted(lambda skipped: 1.0)
    assert search_layers(score, num_layers, 50).best.skipped == Skipped()
    assert calls == [Skipped()]


def test_which_layers_are_kept_can_be_said() -> None:
    search = search_layers(lambda skipped: float(len(skipped)), 4, 200, kept=[2])
    assert str(search.best.skipped) == "0-1+3"


def test_no_evaluations_are_an_error() -> None:
    with pytest.raises(ModelError, match=r"^layer search: 0 evaluations; at least 1 is required\.$"):
        search_layers(valley, 8, 0)


def test_on_a_model_the_search_finds_the_set_of_the_highest_speedup() -> None:
    """Four layers, of which all sixteen sets of the middle ones are tried."""
    target = target_level(num_layers=4, max_position_embeddings=80).decoder
    texts = [TargetText.write(target, prompt, 40) for prompt in ([1, 2, 3], [7, 5, 11, 3])]
    sizes = PartBytes.of(target)
    score = layer_skip_speedup(target, texts, 3, sizes, sizes.total())
    parts = [("a", 1), ("m", 1), ("a", 2), ("m", 2)]
    scores = {}
    for count in range(5):
        for chosen in combinations(parts, count):
            skipped = Skipped(
                frozenset(layer for kind, layer in chosen if kind == "a"),
                frozenset(layer for kind, layer in chosen if kind == "m"),
            )
            results = [text.drafted_by(target.variant(skipped), 3) for text in texts]
            num_bytes = sum(r.num_rounds * sizes.total() + r.num_proposed * sizes.total(skipped) for r in results)
            scores[skipped] = 2 * 39 * sizes.total() / num_bytes
    search = search_layers(score, 4, 16)
    assert {trial.skipped: trial.score for trial in search.trail} == pytest.approx(scores)
    assert search.best.score == max(scores.values())
    assert len(set(scores.values())) > 8


def test_a_draft_that_is_the_target_is_worth_what_it_costs() -> None:
    target = target_level(num_layers=2).decoder
    texts = [TargetText.write(target, [1, 2, 3], 17)]
    sizes = PartBytes.of(target)
    assert layer_skip_speedup(target, texts, 3, sizes, sizes.total())(Skipped()) == 1.0
    assert layer_skip_speedup(target, texts, 3, PartBytes.of(target, 8.0), sizes.total())(Skipped()) == 1.6
    assert layer_skip_speedup(target, [], 3, sizes, sizes.total())(Skipped()) == 0.0
