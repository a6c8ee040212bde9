"""The map of lengths and thresholds: its shape, its meaning, what it predicts, and what it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from packages import quantize

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.sweep import LENGTHS, THRESHOLDS, Sweep, highest, sweep_draft
from mxconv.bench.sweep_plot import SPEQ_DEFAULT
from mxconv.cost.early_exit import expected_round
from mxconv.engine.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.speculation.generation import Generation
from mxconv.speculation.hierarchy import Hierarchy

PROMPTS = ["Once upon", "A dog"]
GRID = (1, 4), (0.0, 0.05, 1.0)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPackage]:
    folder = tmp_path_factory.mktemp("sweep")
    quantize(write_tiny_llama(folder / "source"), folder / "package")
    with LoadedPackage(folder / "package", num_threads=1) as opened:
        yield opened


def decoded(loaded: LoadedPackage, length: int, threshold: float) -> list[Generation]:
    hierarchy = Hierarchy(loaded.levels[:2], [length], [threshold])
    return [hierarchy.generate(loaded.tokenizer.encode(p), 12, loaded.tokenizer.eos_token_ids) for p in PROMPTS]


def test_each_cell_is_what_decoding_with_its_numbers_gives(loaded: LoadedPackage) -> None:
    told: list[tuple[str, int, int]] = []
    lengths, thresholds = GRID
    sweep = sweep_draft(loaded, PROMPTS, 12, lambda *call: told.append(call), lengths, thresholds)
    assert (sweep.level, sweep.num_draft_tokens, sweep.confidence) == ("mxfp4", [1, 4], [0.0, 0.05, 1.0])
    assert told[-1] == ("sweep", 12, 12)
    for row, length in enumerate(lengths):
        for column, threshold in enumerate(thresholds):
            runs = decoded(loaded, length, threshold)
            drafts = [run.trace.statistics[1] for run in runs]
            accepted, proposed = (sum(getattr(d, key) for d in drafts) for key in ("num_accepted", "num_proposed"))
            assert sweep.acceptance_rate[row][column] == accepted / proposed
            rounds = sum(run.trace.num_rounds for run in runs)
            assert sweep.tokens_per_round[row][column] == sum(len(run.token_ids) for run in runs) / rounds
            assert sweep.speedup[row][column] > 0


def test_the_acceptance_is_that_of_the_greatest_length_at_threshold_0(loaded: LoadedPackage) -> None:
    sweep = sweep_draft(loaded, PROMPTS, 12, lengths=(2, 4, 3), thresholds=(0.05, 0.0))
    judged = accepted = 0
    for run in decoded(loaded, 4, 0.0):
        for draft in run.trace.entries[3::2]:  # a round each, the prompt's left out
            judged += min(draft.num_accepted + 1, draft.num_proposed)
            accepted += draft.num_accepted
    assert judged > 0
    assert sweep.acceptance == accepted / judged


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Real decodes by another clock: a plain pass takes 2 s, a draft token 0.5 s, verification of n 1.8 + 0.3 n s."""
    generate = Hierarchy.generate
    extra = {"target": 0.0, "mxfp4": 0.0}  # on top, once: in the first round of the first decode with a draft

    def timed(self: Hierarchy, *arguments: Any) -> Generation:
        made = generate(self, *arguments)
        proposed = {entry.round: entry.num_proposed for entry in made.trace.entries if entry.level == "mxfp4"}
        for place, entry in enumerate(made.trace.entries):
            if entry.round == 0:
                seconds = 50.0 * entry.num_forwards  # a prompt's own round is no decoding
            elif entry.level == "mxfp4":
                seconds = 0.5 * entry.num_proposed
            else:
                seconds = 1.8 + 0.3 * proposed[entry.round] if proposed else 2.0
            if proposed and entry.round == 1 and len(made.token_ids) > 8:  # behind what warms up
                seconds += extra[entry.level]
                extra[entry.level] = 0.0
            made.trace.entries[place] = replace(entry, seconds=seconds)
        made.seconds = sum(entry.seconds for entry in made.trace.entries)
        made.prompt_seconds = sum(entry.seconds for entry in made.trace.entries if entry.round == 0)
        return made

    monkeypatch.setattr(Hierarchy, "generate", timed)
    return extra


def test_costs_are_in_plain_passes_and_predict_every_cell(loaded: LoadedPackage, clock: dict[str, float]) -> None:
    lengths, thresholds = GRID
    sweep = sweep_draft(loaded, PROMPTS, 12, lengths=lengths, thresholds=thresholds)
    assert sweep.costs is not None
    assert sweep.acceptance is not None
    costs = sweep.costs.draft_token, sweep.costs.verification, sweep.costs.verified_token
    assert costs == pytest.approx((0.25, 0.9, 0.15))
    assert np.shape(sweep.predicted_speedup) == np.shape(sweep.decode_speedup) == (2, 3)
    for row, length in enumerate(lengths):
        for column, threshold in enumerate(thresholds):
            mean = expected_round(sweep.acceptance, length, threshold)
            seconds = 0.5 * mean.num_drafted + 1.8 + 0.3 * mean.num_drafted
            assert sweep.predicted_speedup[row][column] == pytest.approx(mean.num_tokens * 2.0 / seconds)


def test_the_measured_speed_up_leaves_the_prompts_out(loaded: LoadedPackage, clock: dict[str, float]) -> None:
    lengths, thresholds = GRID
    sweep = sweep_draft(loaded, PROMPTS, 12, lengths=lengths, thresholds=thresholds)
    for row, length in enumerate(lengths):
        for column, threshold in enumerate(thresholds):
            runs = decoded(loaded, length, threshold)
            seconds = sum(entry.seconds for run in runs for entry in run.trace.entries if entry.round > 0)
            num_tokens = sum(len(run.token_ids) - 1 for run in runs)
            assert sweep.decode_speedup[row][column] == pytest.approx(2.0 * num_tokens / seconds)
            ratios = [(50.0 + 2.0 * (len(run.token_ids) - 1)) / run.seconds for run in runs]
            assert sweep.speedup[row][column] == pytest.approx(geometric_mean(ratios))


@pytest.mark.parametrize("level", ["target", "mxfp4"])
def test_an_interrupted_pass_counts_for_three_medians(
    loaded: LoadedPackage, clock: dict[str, float], level: str
) -> None:
    clock[level] = 1e6
    sweep = sweep_draft(loaded, PROMPTS, 12, lengths=(2,), thresholds=(0.0, 1.0))
    assert clock[level] == 0
    assert sweep.costs is not None
    assert 0.25 <= sweep.costs.draft_token <= 3 * 0.25
    for number in (1, 2):
        true = 0.9 + 0.15 * number
        assert 0.99 * true <= sweep.costs.verification + sweep.costs.verified_token * number <= 3 * true
    assert (sweep.costs.draft_token > 0.2501) == (level == "mxfp4")


def test_verification_of_more_tokens_never_takes_less(
    loaded: LoadedPackage, clock: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = Hierarchy.generate

    def inverted(self: Hierarchy, *arguments: Any) -> Generation:
        made = falling(self, *arguments)
        for place, entry in enumerate(made.trace.entries):
            if entry.level == "target" and len(self.levels) == 2:
                made.trace.entries[place] = replace(entry, seconds=5 - entry.seconds)
        return made

    monkeypatch.setattr(Hierarchy, "generate", inverted)
    sweep = sweep_draft(loaded, PROMPTS, 12, lengths=(1, 4), thresholds=(0.0,))
    assert sweep.costs is not None
    assert sweep.costs.verified_token == 0
    assert 1 <= sweep.costs.verification <= 1.45  # (5 - 1.8 - 0.3 n) / 2 of n = 0 to 4


def test_without_threshold_0_nothing_is_predicted(loaded: LoadedPackage) -> None:
    sweep = sweep_draft(loaded, PROMPTS, 12, lengths=(1, 4), thresholds=(0.05,))
    assert sweep.acceptance is None
    assert sweep.costs is not None
    assert sweep.predicted_speedup == [[None], [None]]
    assert sweep.mean_error is sweep.worst_error is highest(sweep.predicted_speedup) is None


def test_texts_of_one_token_have_neither_speed_up(loaded: LoadedPackage) -> None:
    sweep = sweep_draft(loaded, PROMPTS, 1, lengths=(2,), thresholds=(0.0,))
    assert (sweep.acceptance, sweep.costs) == (None, None)
    assert sweep.decode_speedup == sweep.predicted_speedup == [[None]]
    assert sweep.mean_error is sweep.worst_error is None


def test_errors_are_those_of_the_prediction_against_the_measurement() -> None:
    sweep = Sweep(
        "mxfp4", [1, 4], [0.0, 0.5], [[1.0] * 2] * 2, [[1.0, 2.0], [1.6, None]], [[1.1, 1.0], [1.6, 1.2]],
        0.8, None, [[0.8] * 2] * 2, [[1.0] * 2] * 2, "target",
    )  # fmt: skip
    assert sweep.prediction_error == [[pytest.approx(0.1), -0.5], [0.0, None]]
    assert sweep.mean_error == pytest.approx(0.2)
    assert sweep.worst_error == -0.5
    assert (highest(sweep.decode_speedup), highest(sweep.predicted_speedup)) == ((0, 1), (1, 0))


def test_speqs_default_is_a_cell_of_the_default_grid() -> None:
    length, threshold = SPEQ_DEFAULT
    assert length in LENGTHS
    assert threshold in THRESHOLDS
    assert 0.0 in THRESHOLDS  # which gives the acceptance


def test_a_package_without_a_draft_cannot_be_swept(loaded: LoadedPackage) -> None:
    with (
        LoadedPackage(loaded.package.root, ["target"], num_threads=1) as alone,
        pytest.raises(ModelError, match=r"package: no draft among its levels; one is required for a sweep\."),
    ):
        sweep_draft(alone, PROMPTS, 4)


def test_a_text_that_differs_ends_the_sweep(loaded: LoadedPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = Hierarchy.generate

    def spoiled(self: Hierarchy, *arguments: Any) -> Any:
        generation = generate(self, *arguments)
        return generation if len(self.levels) == 1 else replace(generation, token_ids=[0, *generation.token_ids])

    monkeypatch.setattr(Hierarchy, "generate", spoiled)
    with pytest.raises(ModelError, match=r"tokens of mxfp4, 2 a round above 0\.5, differ from those of greedy"):
        sweep_draft(loaded, PROMPTS, 4, lengths=(2,), thresholds=(0.5,))
