"""SPIRe drafts in hierarchies: what they see of the level above, their trees, and the target's own tokens as ever."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from packages import forge, quantize
from reader_levels import check_all, specs
from spires import spire_config, spire_tensors, write_spire
from trained_levels import TRAINED, write_noisy

from mxconv.cost.package_levels import package_levels
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.stored_bytes import checkpoint_bytes
from mxconv.errors import ModelError
from mxconv.package.manifest import read_manifest
from mxconv.package.package import Package
from mxconv.speculation.selection import GREEDY

TARGET = json.loads((TRAINED / "config.json").read_text())  # three layers, 64 numbers a state, tied embeddings
TENSORS = safetensors.numpy.load_file(TRAINED / "model.safetensors")
CONFIG = spire_config(TARGET, (1, 2), window=16)  # less than a prompt and what follows
WITH_HEAD = CONFIG | {"tie_word_embeddings": False}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft copied with a little noise, 4-bit copies of it, one with a head, and a package that has it as a level."""
    folder = tmp_path_factory.mktemp("spires")
    tensors = spire_tensors(TENSORS, CONFIG, noise=0.05)
    spire = write_spire(folder / "spire", CONFIG, tensors, "BF16")
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    write_spire(folder / "embeddings", WITH_HEAD | {"past_memory": "embeddings"}, tensors | head, "F16")
    quantize(spire, folder / "spire-mxfp4", lm_head="quantize")
    quantize(spire, folder / "spire-bsfp", codec="bsfp", lm_head="quantize")
    quantize(spire, folder / "spire-kept", lm_head="keep")
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}", f"spire:{spire}", "prompt-lookup")
    quantize(write_noisy(folder / "source", 0.0), folder / "package", drafts=drafts)
    return folder / "package"


def test_a_better_copy_is_believed_more_often(package: Path, tmp_path: Path) -> None:
    """All the target's layers, mixing nothing, say what the target says; noise and fewer layers cost agreement."""
    config = spire_config(TARGET, range(3), window=512)
    whole = spire_tensors(TENSORS, config, noise=0.0) | {"spire.memory_weights": 100.0 * np.eye(3, 4)}
    write_spire(tmp_path / "whole", config, whole, "BF16")
    shares = []
    for spec in (f"spire:{tmp_path}/whole", f"spire:{package.parent}/spire"):
        with LoadedPackage(package, ["target"], drafts=specs(tmp_path, spec)) as loaded:
            ((proposed, accepted),) = check_all(loaded.levels, [4], "chain", GREEDY, 24)
        shares.append(accepted / proposed)
    assert shares[0] > 0.97 and 0 < shares[1] < shares[0]


def test_four_bit_packages_keep_look_ups_and_mixture_exact(package: Path) -> None:
    records = {tensor.name: tensor.codec for tensor in read_manifest(package.parent / "spire-mxfp4").tensors}
    assert records["spire.memory_weights"] == "keep" and records["model.embed_tokens.weight"] == "mxfp4"
    rows = np.array([3, 500, 1023])
    made = {}
    for name in ("spire", "spire-mxfp4", "spire-bsfp", "spire-kept"):
        with LoadedPackage(package, ["target"], drafts=specs(package.parent, f"spire:HERE/{name}")) as loaded:
            spire = loaded.levels[1].reader
            made[name] = (spire.decoder.embedding.rows(rows), spire.decoder.head.rows(rows), spire.memory_shares)  # type: ignore[union-attr]
            check_all(loaded.levels, [3], 12, GREEDY)
    exact = made["spire"]
    for name, (embedding, head, shares) in made.items():
        np.testing.assert_array_equal(embedding, exact[0])
        np.testing.assert_array_equal(shares, exact[2])
        assert np.array_equal(head, exact[1]) == (name in ("spire", "spire-kept"))


def test_its_cost_is_that_of_its_layers_over_a_window(package: Path, tmp_path: Path) -> None:
    drafts = tuple(f"spire:{package.parent}/{name}" for name in ("spire", "spire-mxfp4", "spire-bsfp"))
    quantize(package.parent / "source", tmp_path / "p", drafts=drafts)
    with Package(tmp_path / "p") as opened:
        exact, mxfp4, bsfp = package_levels(opened)[-3:]
    for level in (exact, mxfp4, bsfp):
        a = level.architecture
        assert a is not None and (a.windows, a.dense_sizes, a.hidden_size) == ((17, 17), (192, 192), 64)
        assert 0.8 < level.acceptance < 0.81 and "SPIRe" in level.acceptance_source
    assert [level.codec for level in (exact, mxfp4, bsfp)] == ["bf16", "mxfp4", "bsfp-draft"]
    assert exact.num_bytes == checkpoint_bytes(package.parent / "spire")
    assert mxfp4.num_bytes and bsfp.num_bytes and exact.num_bytes > 3.5 * max(mxfp4.num_bytes, bsfp.num_bytes)


def test_it_says_nothing_beyond_its_positions(package: Path, tmp_path: Path) -> None:
    write_spire(tmp_path / "short", CONFIG | {"max_position_embeddings": 30}, spire_tensors(TENSORS, CONFIG), "BF16")
    with LoadedPackage(package, ["target"], drafts=specs(tmp_path, "spire:HERE/short")) as loaded:
        for tree in ("chain", 12):
            assert check_all(loaded.levels, [5], tree, GREEDY)[0, 0] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_layers": [1, 3]}, "reads layers up to 3, and the target's last is 2; layers of the target"),
        ({"model_type": "mlp_speculator"}, 'model_type is "mlp_speculator"; mxconv supports spire'),
    ],
)
def test_a_draft_of_another_target_is_refused(
    package: Path, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    other = write_spire(tmp_path / "other", CONFIG | changes, spire_tensors(TENSORS, CONFIG), "BF16")
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "spire:HERE/other"))
    with pytest.raises(ModelError, match=message):
        quantize(write_noisy(tmp_path / "source", 0.0), tmp_path / "p", drafts=(f"spire:{other}",))
    assert not (tmp_path / "p").exists()


def test_a_package_whose_manifest_calls_it_something_else_is_refused(package: Path, tmp_path: Path) -> None:
    quantize(package.parent / "source", tmp_path / "p", drafts=(f"spire:{package.parent}/spire",))

    def change(members: dict[str, object]) -> None:
        members["levels"][-1]["kind"] = "speculator"  # type: ignore[index]

    forge(tmp_path / "p", change)
    with pytest.raises(ModelError, match='model_type is "spire"; mxconv supports mlp_speculator'):
        LoadedPackage(tmp_path / "p")
