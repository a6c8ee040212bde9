"""Bytes that a forward pass reads, against those of the arrays in the files."""

import json
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize
from plug_ins import RECYCLING

from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.pass_cost import checkpoint_bytes
from mxconv.package.package import Package


def stored(package: Package, *endings: str) -> int:
    """Bytes of the arrays whose names end so."""
    return sum(array.num_bytes for name, array in package.arrays.items() if name.endswith(endings))


def per_level(path: Path) -> dict[str, int]:
    with LoadedPackage(path, kernel="numpy") as loaded:
        return {level.name: loaded.bytes_per_pass(level) for level in loaded.levels}


def test_an_mxfp4_package_reads_16_bits_for_the_target_and_codes_and_scales_for_the_draft(tmp_path: Path) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package", target="include")
    with Package(tmp_path / "package") as package:
        target = stored(package, "proj.weight", "lm_head.weight")
        draft = stored(package, ".codes", ".elements", ".scales")
    assert per_level(tmp_path / "package") == {"target": target, "mxfp4": draft}


def test_bsfp_reads_one_set_of_bytes_twice(tmp_path: Path) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package", codec="bsfp")
    with Package(tmp_path / "package") as package:
        embedding = "model.embed_tokens.weight"
        draft = stored(package, "proj.weight.codes", "proj.weight.scales", "head.weight.codes", "head.weight.scales")
        parts = ("codes", "residual_low", "residual_high", "row_shifts", "counts", "offsets", "positions", "high")
        target = sum(
            array.num_bytes
            for name, array in package.arrays.items()
            if not name.startswith(embedding) and ".weight." in name and name.endswith(parts)
        )
    assert per_level(tmp_path / "package") == {"target": target, "bsfp": draft}


def test_a_tied_head_is_read_and_a_head_kept_in_16_bits_is_read_by_the_draft_too(tmp_path: Path) -> None:
    tied = write_tiny_llama(tmp_path / "tied", tie_word_embeddings=True)
    apart = write_tiny_llama(tmp_path / "apart")
    quantize(tied, tmp_path / "tied-package")
    quantize(apart, tmp_path / "apart-package")
    quantize(apart, tmp_path / "kept-package", lm_head="keep")
    with_tied, with_head = per_level(tmp_path / "tied-package"), per_level(tmp_path / "apart-package")
    assert with_tied["target"] == with_head["target"]
    assert with_tied["mxfp4"] == with_head["mxfp4"]
    head = 96 * 64  # vocabulary x hidden
    kept = per_level(tmp_path / "kept-package")
    assert kept["target"] == with_head["target"]
    assert kept["mxfp4"] == with_head["mxfp4"] - head * 33 // 32 + head * 2
    quantize(apart, tmp_path / "quantized-package", lm_head="quantize")
    assert per_level(tmp_path / "quantized-package")["mxfp4"] == kept["mxfp4"] - head * 2 + head * 17 // 32


def test_a_model_level_reads_its_own_matrices(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(tmp_path / "small", num_hidden_layers=1)
    quantize(small, tmp_path / "nested", codec="bsfp")
    quantize(source, tmp_path / "package", drafts=(f"checkpoint:{small}", f"package:{tmp_path / 'nested'}"))
    found = per_level(tmp_path / "package")
    assert found["small"] == checkpoint_bytes(small)
    assert found["nested"] == per_level(tmp_path / "nested")["bsfp"]
    config = json.loads((small / "config.json").read_text())
    hidden, middle, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    assert found["small"] == 2 * (3 * hidden * hidden + 3 * hidden * middle + vocabulary * hidden)


@pytest.mark.parametrize("kind", ["reference", "include"])
def test_a_referenced_target_reads_as_much_as_an_included_one(tmp_path: Path, kind: str) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package", target=kind)
    assert per_level(tmp_path / "package")["target"] == checkpoint_bytes(tmp_path / "source")


@pytest.mark.parametrize("first", ["mxfp4", "target"])
def test_a_view_of_the_runs_target_reads_that_targets_bytes(tmp_path: Path, first: str) -> None:
    quantize(write_tiny_llama(tmp_path / "source"), tmp_path / "package")
    specs = [parse_draft(text) for text in ("streaming", "retrieval", RECYCLING)]
    with LoadedPackage(tmp_path / "package", [first], kernel="numpy", drafts=specs) as loaded:
        whole, streaming, retrieval, look_up = (loaded.bytes_per_pass(level) for level in loaded.levels)
    with Package(tmp_path / "package") as package:
        endings = (".codes", ".elements", ".scales") if first == "mxfp4" else ("proj.weight", "lm_head.weight")
        assert whole == stored(package, *endings)
        assert retrieval == stored(package, ".codes", ".elements", ".scales")
    assert (streaming, look_up) == (whole, 0)
