"""A converted small model as a draft: from its 4 bits, or from the level that is named."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_tiny_llama
from loaded_packages import logits, pack, rewrite, source_logits
from speculators import speculator_config, write_speculator
from tiny_levels import decoder_of

from mxconv.cost.package_levels import package_levels
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.pass_cost import package_bytes
from mxconv.errors import ModelError, MxconvError, PackageError
from mxconv.package.manifest import read_manifest
from mxconv.package.package import Package


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small packages of both codecs, with drafts of their own, and the checkpoint of a model to draft for."""
    folder = tmp_path_factory.mktemp("draft-packages")
    write_tiny_llama(folder / "source")
    small = write_tiny_llama(folder / "small", seed=1, num_hidden_layers=3)
    smaller = write_tiny_llama(folder / "smaller", seed=2, num_hidden_layers=1)
    for codec in ("mxfp4", "bsfp"):
        drafts = ("streaming,sink=1,window=5", "retrieval", f"checkpoint:{smaller}", "prompt-lookup")
        pack(small, folder / codec, codec=codec, drafts=drafts)
    pack(folder / "source", folder / "alone")
    return folder


def drafting(folder: Path, spec: str, place: Path | None = None) -> LoadedPackage:
    """The model with a draft: named when it is loaded, or a level of a package at `place`."""
    if place is None:
        return LoadedPackage(folder / "alone", drafts=[parse_draft(spec)])
    return LoadedPackage(pack(folder / "source", place, drafts=(spec,)))


@pytest.mark.parametrize(("codec", "is_in_package"), [("mxfp4", True), ("bsfp", False)])
def test_a_package_drafts_from_its_four_bits(folder: Path, tmp_path: Path, codec: str, is_in_package: bool) -> None:
    with (
        drafting(folder, f"package:{folder / codec}", tmp_path / "package" if is_in_package else None) as loaded,
        LoadedPackage(folder / codec) as own,
    ):
        assert [level.name for level in loaded.levels] == ["target", "mxfp4", codec if codec == "bsfp" else "mxfp4-2"]
        level = loaded.levels[2]
        assert (level.record.kind, level.record.codec, level.record.level) == ("model", "package", codec)
        found = logits(decoder_of(level))
        assert found.tobytes() == logits(decoder_of(own.levels[1])).tobytes()
        exact = source_logits(folder / "small")
        assert 0 < float(np.abs(found - exact).max()) < float(np.abs(exact).max())
        assert loaded.bytes_per_pass(level) == own.bytes_per_pass(own.levels[1])


@pytest.mark.parametrize("name", ["target", "streaming"])
def test_another_level_is_named(folder: Path, tmp_path: Path, name: str) -> None:
    with (
        drafting(folder, f"package:{folder / 'bsfp'},level={name}", tmp_path / "package") as loaded,
        LoadedPackage(folder / "bsfp", ["target", *[name] * (name != "target")]) as own,
    ):
        level, alone = loaded.levels[2], own.levels[-1]
        assert level.record.level == name and not level.shares_cache
        assert logits(decoder_of(level)).tobytes() == logits(decoder_of(alone)).tobytes()
        assert loaded.bytes_per_pass(level) == own.bytes_per_pass(alone)


def test_a_manifest_of_before_there_was_a_choice_drafts_from_16_bits(folder: Path, tmp_path: Path) -> None:
    drafting(folder, f"package:{folder / 'mxfp4'}", tmp_path / "package").close()
    levels = read_manifest(tmp_path / "package").levels
    rewrite(tmp_path / "package", levels=[level.model_copy(update={"level": None}) for level in levels])
    with LoadedPackage(tmp_path / "package") as loaded:
        assert logits(decoder_of(loaded.levels[2])).tobytes() == source_logits(folder / "small").tobytes()
    with Package(tmp_path / "package") as package:
        assert package_levels(package)[2].codec == "bf16"


def test_cost_counts_the_bytes_of_the_level(folder: Path, tmp_path: Path) -> None:
    specs = [f"package:{folder / codec}{level}" for codec in ("mxfp4", "bsfp") for level in ("", ",level=target")]
    specs.append(f"package:{folder / 'mxfp4'},level=streaming")
    pack(folder / "source", tmp_path / "package", drafts=tuple(specs))
    with Package(folder / "mxfp4") as mxfp4, Package(folder / "bsfp") as bsfp:
        expected = [package_bytes(each, is_draft) for each in (mxfp4, bsfp) for is_draft in (True, False)]
    with Package(tmp_path / "package") as package:
        levels = package_levels(package)[2:]
    assert [level.codec for level in levels] == ["mxfp4", "bf16", "bsfp-draft", "bsfp", "bf16"]
    assert [level.num_bytes for level in levels[:4]] == expected
    assert levels[4].num_bytes is not None and levels[4].num_bytes == expected[1]
    assert {level.acceptance for level in levels} == {0.68}  # of small models, whatever their bits


def test_a_package_that_references_its_target_drafts_where_the_source_is(folder: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(folder / "small", tmp_path / "small"))
    nested = pack(source, tmp_path / "nested", target="reference")
    with drafting(folder, f"package:{nested}") as loaded, LoadedPackage(folder / "mxfp4") as own:
        assert logits(decoder_of(loaded.levels[2])).tobytes() == logits(decoder_of(own.levels[1])).tobytes()
    with pytest.raises(PackageError, match=r"nested: references its target; .* Convert it with --target include\.$"):
        drafting(folder, f"package:{nested}", tmp_path / "package")
    shutil.rmtree(source)
    with pytest.raises(MxconvError, match="Level mxfp4 needs it too: its embedding, its norms"):
        drafting(folder, f"package:{nested}")


REFUSED = {
    "none": r"level 'none' is not in this package; one of target, mxfp4, streaming, retrieval, smaller",
    "retrieval": "level retrieval is of the kind retrieval; a level with the weights of the package's own model, targ",
    "prompt-lookup": "level prompt-lookup is of the kind prompt-lookup; a level with the weights of the package's own",
    "smaller": r"level smaller is of the kind model; .* --draft checkpoint:.*mxfp4/drafts/\d-smaller takes that",
}


@pytest.mark.parametrize("is_in_package", [True, False])
def test_levels_that_cannot_draft_for_another_model_are_refused(
    folder: Path, tmp_path: Path, is_in_package: bool
) -> None:
    place = tmp_path / "package" if is_in_package else None
    for name, message in REFUSED.items():
        with pytest.raises(ModelError, match=f"^{re.escape(str(folder / 'mxfp4'))}: {message}"):
            drafting(folder, f"package:{folder / 'mxfp4'},level={name}", place)
    assert not (tmp_path / "package").exists()


def test_a_level_that_a_manifest_names_must_be_there(folder: Path, tmp_path: Path) -> None:
    drafting(folder, f"package:{folder / 'mxfp4'}", tmp_path / "package").close()
    levels = read_manifest(tmp_path / "package").levels
    rewrite(tmp_path / "package", levels=[*levels[:2], levels[2].model_copy(update={"level": "gone"})])
    with pytest.raises(
        ModelError, match=r"drafts/1-mxfp4-2: level 'gone' is not in this package; one of target, mxfp4, "
    ):
        LoadedPackage(tmp_path / "package")


def test_a_draft_that_reads_states_is_given_by_its_own_kind(folder: Path, tmp_path: Path) -> None:
    write_speculator(tmp_path / "speculator", speculator_config(64, 96))
    nested = pack(tmp_path / "speculator", tmp_path / "nested")
    message = f"a draft of the kind speculator, .* Use --draft speculator:{re.escape(str(nested))}"
    for place in (None, tmp_path / "package"):
        with pytest.raises(ModelError, match=message):
            drafting(folder, f"package:{nested}", place)
