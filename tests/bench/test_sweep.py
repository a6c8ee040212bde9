"""The map of lengths and thresholds: its shape, its meaning, and what it refuses."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.sweep import sweep_draft
from mxconv.errors import ModelError
from mxconv.model.loader import LoadedPackage
from mxconv.speculative.hierarchy import Hierarchy

PROMPTS = ["Once upon", "A dog"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPackage]:
    folder = tmp_path_factory.mktemp("sweep")
    quantize(write_tiny_llama(folder / "source"), folder / "package")
    with LoadedPackage(folder / "package", num_threads=1) as opened:
        yield opened


def test_each_cell_is_what_decoding_with_its_numbers_gives(loaded: LoadedPackage) -> None:
    told: list[tuple[str, int, int]] = []
    lengths, thresholds = (1, 4), (0.0, 0.05, 1.0)
    sweep = sweep_draft(loaded, PROMPTS, 12, lambda *call: told.append(call), lengths, thresholds)
    assert (sweep.level, sweep.num_draft_tokens, sweep.confidence) == ("mxfp4", [1, 4], [0.0, 0.05, 1.0])
    assert told[-1] == ("sweep", 12, 12)
    for row, length in enumerate(lengths):
        for column, threshold in enumerate(thresholds):
            hierarchy = Hierarchy(loaded.levels[:2], [length], [threshold])
            runs = [hierarchy.generate(loaded.tokenizer.encode(p), 12, loaded.tokenizer.eos_token_ids) for p in PROMPTS]
            drafts = [run.trace.statistics[1] for run in runs]
            accepted, proposed = (sum(getattr(d, key) for d in drafts) for key in ("num_accepted", "num_proposed"))
            assert sweep.acceptance_rate[row][column] == accepted / proposed
            rounds = sum(run.trace.num_rounds for run in runs)
            assert sweep.tokens_per_round[row][column] == sum(len(run.token_ids) for run in runs) / rounds
            assert sweep.speedup[row][column] > 0


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
