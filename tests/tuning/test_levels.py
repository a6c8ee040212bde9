"""The search over levels, lengths and thresholds, on models that decode and clocks that are told the time."""

from typing import Any

import pytest
from tiny_levels import noisy_copy, self_draft, target_level

from mxconv.engine.loaded_level import LoadedLevel
from mxconv.errors import ModelError
from mxconv.tuning.candidate import Candidate
from mxconv.tuning.levels import Decodes, record_of, tune_levels

PROMPTS = [[1, 2, 3], [7, 5, 11], [4, 4]]
LEVELS = [target_level(), self_draft(), noisy_copy(noise=0.3)]


class Landscape(Decodes):
    """Decoding takes as long as a formula says; the fastest is the second draft alone, 6 tokens, threshold 0.5."""

    best = Candidate((2,), (6,), (0.5,))

    def __init__(self, gain: float = 2.0) -> None:
        super().__init__(LEVELS, PROMPTS, 8, ())
        self.now = 0.0
        self.gain = gain

    def seconds_of(self, candidate: Candidate | None, prompt: int) -> float:
        seconds = 1.0
        if candidate is not None:
            seconds /= self.gain
            seconds *= 1 + 0.5 * (candidate.drafts != self.best.drafts)
            seconds *= 1 + 0.02 * abs(candidate.num_draft_tokens[0] - 6) + abs(candidate.confidence[0] - 0.5)
        self.num_tokens += 8
        self.now += seconds
        return seconds


def test_the_search_climbs_to_the_fastest() -> None:
    landscape = Landscape()
    tuning = tune_levels(landscape, LEVELS, 3, 2000, clock=lambda: landscape.now)
    assert tuning.winner.entrant == Landscape.best
    assert tuning.winner.speedup == pytest.approx(2.0)
    assert tuning.pays
    assert tuning.num_tokens == 3 * 8
    assert tuning.standings[0].entrant.drafts == (2,)


@pytest.mark.parametrize("budget", [30, 100, 300])
def test_the_search_ends_in_its_budget(budget: float) -> None:
    landscape = Landscape()
    told: list[tuple[str, int, int]] = []
    tune_levels(landscape, LEVELS, 3, budget, lambda *call: told.append(call), lambda: landscape.now)
    assert landscape.now <= budget + 6  # a run of each kind may begin just before its share ends
    assert told[-1] == ("tune", budget, budget)


def test_where_no_draft_pays_the_record_names_the_target_alone() -> None:
    landscape = Landscape(gain=0.9)
    tuning = tune_levels(landscape, LEVELS, 3, 500, clock=lambda: landscape.now)
    assert not tuning.pays
    record = record_of(tuning, LEVELS, "a processor", 2, "avx2")
    assert (record.levels, record.num_draft_tokens, record.confidence, record.speedup) == (["target"], [], [], 1.0)
    assert (record.num_prompts, record.num_tokens) == (3, 24)


def test_the_record_names_levels_numbers_and_machine() -> None:
    landscape = Landscape()
    record = record_of(tune_levels(landscape, LEVELS, 3, 2000, clock=lambda: landscape.now), LEVELS, "cpu", 2, "avx2")
    assert (record.levels, record.num_draft_tokens, record.confidence) == (["target", "noisy"], [6], [0.5])
    assert (record.cpu, record.threads, record.kernel) == ("cpu", 2, "avx2")


def test_real_models_are_decoded_and_compared() -> None:
    decodes = Decodes(LEVELS, PROMPTS, 8, ())
    tuning = tune_levels(decodes, LEVELS, len(PROMPTS), 0.5)
    assert tuning.winner.entrant.drafts in [(1,), (2,), (1, 2)]
    assert all(ratio > 0 for standing in tuning.standings for ratio in standing.ratios)
    assert tuning.num_tokens == 8 * len(tuning.winner.ratios)
    assert decodes.describe(Candidate((1, 2), (4, 4), (0.0, 0.0))) == "target <- mxfp4 <- noisy"
    assert decodes.describe(None) == "target"


def test_a_text_that_differs_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    decodes = Decodes(LEVELS, PROMPTS, 8, ())
    generate = decodes._generate

    def spoiled(hierarchy: Any, *arguments: Any) -> Any:
        generation = generate(hierarchy, *arguments)
        if len(hierarchy.levels) > 1:
            generation.token_ids.append(0)
        return generation

    monkeypatch.setattr(decodes, "_generate", spoiled)
    message = r"^prompt 0: decoding with target <- mxfp4 <- noisy gives another text than plain decoding; none may\."
    with pytest.raises(ModelError, match=message):
        tune_levels(decodes, LEVELS, len(PROMPTS), 1)


def test_a_target_alone_cannot_be_tuned() -> None:
    alone: list[LoadedLevel] = LEVELS[:1]
    with pytest.raises(ModelError, match=r"^levels target: no draft to choose; at least one is required\."):
        tune_levels(Decodes(alone, PROMPTS, 8, ()), alone, len(PROMPTS), 1)
