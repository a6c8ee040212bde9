"""Forward passes and whole decodes of tiny packages: what is measured, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from packages import quantize

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

from mxconv.bench.decode_speed import DecodeResult, bench_decoding, four_bit_level  # noqa: E402
from mxconv.bench.forward_speed import bench_forwards  # noqa: E402
from mxconv.drafts.loader import LoadedPackage  # noqa: E402
from mxconv.errors import ModelError, MxconvError  # noqa: E402


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    small = write_tiny_llama(folder / "small", seed=1, num_hidden_layers=1)
    quantize(write_tiny_llama(folder / "source"), folder / "package", drafts=(f"checkpoint:{small}",))
    return folder / "package"


@pytest.fixture
def loaded(package: Path) -> Iterator[LoadedPackage]:
    with LoadedPackage(package, kernel=_native.available()[0], num_threads=2) as opened:
        yield opened


def decodes(loaded: LoadedPackage, *prompts: str, max_new_tokens: int = 4, **options: Any) -> list[DecodeResult]:
    assert loaded.matrices.engine is not None
    return bench_decoding(loaded, loaded.matrices.engine, prompts, max_new_tokens, **options)


STRATEGIES = {
    "greedy": ["target"],
    "mxfp4": ["target", "mxfp4"],
    "mxfp4 (trees)": ["target", "mxfp4"],
    "small": ["target", "small"],
    "small (trees)": ["target", "small"],
    "hierarchy": ["target", "mxfp4", "small"],
    "auto": ["target", "mxfp4", "small", "prompt-lookup"],
}


def test_every_strategy_gives_greedys_tokens_and_its_figures(loaded: LoadedPackage) -> None:
    results = {r.strategy: r for r in decodes(loaded, "Once upon", "A dog", max_new_tokens=6)}
    assert list(results) == list(STRATEGIES)
    greedy = results["greedy"]
    assert greedy.speedup == greedy.decode_speedup == greedy.tokens_per_round == pytest.approx(1)
    assert greedy.acceptance_rates == greedy.acceptance_by_prompt == greedy.acceptance_by_position == []
    weights = loaded.bytes_per_pass(loaded.levels[0])
    assert greedy.num_bytes == greedy.num_tokens * weights  # a forward pass a token, the prompt's the first
    for result in results.values():
        assert result.identical_to_greedy
        assert result.num_tokens == greedy.num_tokens
        assert (result.num_prompts, result.batch, result.scaling) == (2, 1, 1)
        num_drafts = len(result.levels) - 1
        assert len(result.acceptance_rates) == len(result.acceptance_by_position) == num_drafts
        assert [len(rates) for rates in result.acceptance_by_prompt] == [2] * num_drafts
        assert min(result.tokens_per_second, result.read_bandwidth, result.fraction_of_bandwidth or 0) > 0
    drafted = results["mxfp4"]
    assert drafted.tokens_per_round > 1
    assert drafted.decode_speedup
    assert all(0 <= rate <= 1 for rate in drafted.acceptance_by_position[0])


def test_a_prompt_without_tokens_is_an_error(loaded: LoadedPackage) -> None:
    with pytest.raises(MxconvError, match="prompt '': no tokens; at least one is required"):
        decodes(loaded, "")


def test_an_ablation_without_a_4_bit_draft_is_refused(loaded: LoadedPackage) -> None:
    with pytest.raises(ModelError, match=r"^levels target, small: no 4-bit draft of the target; one is required"):
        four_bit_level([loaded.levels[0], loaded.levels[2]])


def test_each_level_is_measured_at_each_width(loaded: LoadedPackage) -> None:
    assert loaded.matrices.engine is not None
    results = bench_forwards(loaded, loaded.matrices.engine, [4, 1], num_samples=3)
    found = [(r.level, r.num_tokens) for r in results]
    assert found == [(name, width) for name in ("target", "mxfp4", "small") for width in (1, 4)]
    for result in results:
        assert result.num_samples == 3
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
        bench_forwards(loaded, loaded.matrices.engine, [1, 4], num_samples=3)
