"""Forward passes and whole decodes of tiny packages: what is measured, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from packages import quantize

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.decoding import bench_decoding, strategies_of  # noqa: E402
from mxconv.bench.forwards import bench_forwards  # noqa: E402
from mxconv.bench.traffic import bytes_per_forward  # noqa: E402
from mxconv.errors import MxconvError  # noqa: E402
from mxconv.model.loader import LoadedPackage  # noqa: E402


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    small = write_tiny_llama(folder / "small", seed=1, num_hidden_layers=1)
    quantize(write_tiny_llama(folder / "source"), folder / "package", drafts=(f"checkpoint:{small}",))
    return folder / "package"


@pytest.fixture(params=_native.available())
def loaded(package: Path, request: pytest.FixtureRequest) -> Iterator[LoadedPackage]:
    with LoadedPackage(package, kernel=request.param, num_threads=2) as opened:
        yield opened


def test_strategies_are_greedy_each_draft_alone_and_all_together(loaded: LoadedPackage) -> None:
    names = {name: [level.name for level in levels] for name, levels in strategies_of(loaded.levels).items()}
    assert names == {
        "greedy": ["target"],
        "mxfp4": ["target", "mxfp4"],
        "small": ["target", "small"],
        "hierarchy": ["target", "mxfp4", "small"],
    }
    assert list(strategies_of(loaded.levels[:1])) == ["greedy"]
    assert list(strategies_of(loaded.levels[:2])) == ["greedy", "mxfp4"]


def test_every_strategy_gives_greedys_tokens_and_its_figures(loaded: LoadedPackage) -> None:
    engine = loaded.matrices.engine
    assert engine is not None
    results = {r.strategy: r for r in bench_decoding(loaded, engine, ["Once upon", "A dog"], max_new_tokens=12)}
    assert list(results) == ["greedy", "mxfp4", "small", "hierarchy"]
    greedy = results["greedy"]
    assert greedy.speedup == pytest.approx(1)
    assert greedy.acceptance_rates == []
    weights = bytes_per_forward(loaded, loaded.levels[0].record)
    assert greedy.num_bytes == greedy.num_tokens * weights  # a forward pass a token, the prompt's the first
    for result in results.values():
        assert result.identical_to_greedy
        assert result.num_tokens == greedy.num_tokens
        assert result.num_prompts == 2
        assert len(result.acceptance_rates) == len(result.levels) - 1
        assert min(result.tokens_per_second, result.read_bandwidth, result.fraction_of_bandwidth) > 0


def test_tokens_that_differ_are_told(loaded: LoadedPackage, monkeypatch: pytest.MonkeyPatch) -> None:
    from mxconv.speculative.hierarchy import Hierarchy

    generate = Hierarchy.generate

    def spoiled(self: Hierarchy, *arguments: Any) -> Any:
        generation = generate(self, *arguments)
        if len(self.levels) == 1:
            return generation
        return replace(generation, token_ids=[*generation.token_ids[:-1], generation.token_ids[-1] ^ 1])

    monkeypatch.setattr(Hierarchy, "generate", spoiled)
    assert loaded.matrices.engine is not None
    results = bench_decoding(loaded, loaded.matrices.engine, ["Once"], max_new_tokens=4)
    assert [r.identical_to_greedy for r in results] == [True, False, False, False]


def test_a_prompt_without_tokens_is_an_error(loaded: LoadedPackage) -> None:
    assert loaded.matrices.engine is not None
    with pytest.raises(MxconvError, match="prompt '': no tokens; at least one is required"):
        bench_decoding(loaded, loaded.matrices.engine, [""], max_new_tokens=4)


def test_each_level_is_measured_at_each_width(loaded: LoadedPackage) -> None:
    assert loaded.matrices.engine is not None
    results = bench_forwards(loaded, loaded.matrices.engine, [4, 1], num_samples=20)
    found = [(r.level, r.num_tokens) for r in results]
    assert found == [(name, width) for name in ("target", "mxfp4", "small") for width in (1, 4)]
    for result in results:
        assert result.num_samples == 20
        assert result.gigabytes_per_second == pytest.approx(result.num_bytes / result.seconds / 1e9)
        assert result.seconds_p10 <= result.seconds <= result.seconds_p90
        assert result.fraction_of_bandwidth > 0
    assert [r.relative_seconds for r in results if r.num_tokens == 1] == [1, 1, 1]


def test_a_target_whose_logits_depend_on_the_width_is_not_measured(
    loaded: LoadedPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = loaded.levels[0].decoder
    forward = decoder.forward

    def spoiled(ids: Any, cache: Any, last_only: bool = False) -> np.ndarray:
        logits = forward(ids, cache, last_only)
        return np.nextafter(logits, np.float32(np.inf)) if len(logits) > 1 else logits

    monkeypatch.setattr(decoder, "forward", spoiled)
    assert loaded.matrices.engine is not None
    with pytest.raises(MxconvError, match="level target: a token has other logits alone than among 4"):
        bench_forwards(loaded, loaded.matrices.engine, [1, 4], num_samples=20)
