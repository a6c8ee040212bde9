"""The search over layers of a package's target, and the level it becomes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

from mxconv.engine.loader import LoadedPackage
from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError
from mxconv.package.manifest import Manifest, replace_manifest
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.tuning.layers import tune_layers, with_layer_skip


@pytest.fixture
def package(tmp_path: Path) -> Path:
    small = write_tiny_llama(tmp_path / "small", seed=1, num_hidden_layers=1)
    quantize(
        write_tiny_llama(tmp_path / "source", num_hidden_layers=4), tmp_path / "p", drafts=(f"checkpoint:{small}",)
    )
    return tmp_path / "p"


@pytest.fixture
def loaded(package: Path) -> Iterator[LoadedPackage]:
    with LoadedPackage(package, ["target"], kernel="numpy") as opened:
        yield opened


def manifest_of(package: Path) -> Manifest:
    with LoadedPackage(package, kernel="numpy") as opened:
        return opened.package.manifest


def test_the_same_seed_finds_the_same_set(loaded: LoadedPackage) -> None:
    prompts = [loaded.tokenizer.encode(text) for text in ("Once upon", "A dog")]
    told: list[tuple[str, int, int]] = []
    first = tune_layers(loaded, prompts, 12, 9, 3, progress=lambda *call: told.append(call))
    second = tune_layers(loaded, prompts, 12, 9, 3)
    assert [(str(t.skipped), t.score) for t in first.trail] == [(str(t.skipped), t.score) for t in second.trail]
    assert len(first.trail) == 9
    assert first.trail[0].skipped == Skipped() and first.trail[0].score == pytest.approx(1.0)
    assert all(trial.skipped.attention | trial.skipped.mlp <= {1, 2} for trial in first.trail)
    assert told[2] == ("texts", 2, 2) and told[-1] == ("sets of layers", 9, 9)


def test_the_level_stands_behind_the_target_and_decodes(package: Path) -> None:
    changed = with_layer_skip(manifest_of(package), Skipped.parse("a1+2", 4), 3, force=False)
    replace_manifest(package, changed)
    with LoadedPackage(package, kernel="numpy") as opened:
        assert [level.name for level in opened.levels] == ["target", "layer-skip", "mxfp4", "small"]
        record = opened.levels[1].record
        assert (record.skipped, record.num_draft_tokens, opened.levels[1].shares_cache) == ("2+a1", 3, True)
        prompt = opened.tokenizer.encode("Once upon")
        plain = Hierarchy(opened.levels[:1]).generate(prompt, 12)
        assert Hierarchy(opened.levels).generate(prompt, 12).token_ids == plain.token_ids


def test_another_set_replaces_it_only_by_force(package: Path) -> None:
    once = with_layer_skip(manifest_of(package), Skipped.parse("1", 4), 3, force=False)
    with pytest.raises(ModelError, match=r"^level layer-skip: the package has one, 1; nothing is overwritten\."):
        with_layer_skip(once, Skipped.parse("2", 4), 3, force=False)
    twice = with_layer_skip(once, Skipped.parse("2", 4), 5, force=True)
    assert [level.name for level in twice.levels] == [level.name for level in once.levels]
    assert (twice.levels[1].skipped, twice.levels[1].num_draft_tokens) == ("2", 5)


def test_another_level_of_that_name_is_never_replaced(package: Path) -> None:
    manifest = manifest_of(package)
    renamed = [*manifest.levels[:2], manifest.levels[2].model_copy(update={"name": "layer-skip"})]
    with pytest.raises(ModelError, match=r"^level layer-skip: the package has one, model; nothing is overwritten\."):
        with_layer_skip(manifest.model_copy(update={"levels": renamed}), Skipped.parse("1", 4), 3, force=True)
