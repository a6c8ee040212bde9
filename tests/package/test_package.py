"""Opening a package. Damaged and forged ones are in tests/verify."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from checkpoints import write_tiny_llama
from packages import forge, patch_array, quantize

from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import PackageError
from mxconv.package.package import Package
from mxconv.verify import verify

HEAD = "lm_head.weight"  # (96, 32)
NAME = "model.layers.1.mlp.down_proj.weight"  # (32, 172): 2 row tiles, 172 columns in 2 groups


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    source = write_tiny_llama(folder / "m", hidden_size=32, num_shards=2)
    quantize(source, folder / "mxfp4", max_shard_bytes=20_000)
    quantize(source, folder / "bsfp", codec="bsfp", segments="paper")
    quantize(source, folder / "reference", target="reference")
    return folder


def weights(made: Path) -> dict[str, np.ndarray]:
    shards = sorted((made / "m").glob("*.safetensors"))
    return {name: array for shard in shards for name, array in safetensors.numpy.load_file(shard).items()}


def record_of(package: Package, name: str) -> Any:
    return next(record for record in package.manifest.tensors if record.name == name)


@pytest.mark.parametrize(("start", "stop"), [(0, 32), (0, 16), (16, 32), (16, 21), (0, 1)])
def test_rows_of_a_bsfp_matrix_are_rebuilt_tile_by_tile(made: Path, start: int, stop: int) -> None:
    with Package(made / "bsfp") as package:
        stored = package.bsfp(record_of(package, NAME))
        assert stored.shape == (32, 172)
        found = stored.target_rows(start, stop)
    assert np.array_equal(found, weights(made)[NAME].view(np.uint16)[start:stop])


def test_kept_tensors_are_views_of_their_file(made: Path) -> None:
    for codec in ("mxfp4", "bsfp"):
        with Package(made / codec) as package:
            kept = package.kept(record_of(package, "model.embed_tokens.weight")).array()
            assert np.array_equal(kept, weights(made)["model.embed_tokens.weight"].view(np.uint16))
            with pytest.raises(ValueError, match="read-only"):
                kept[0, 0] = 0


@pytest.mark.parametrize(
    ("part", "byte", "found"),
    [
        ("elements", 0x80, "MXINT8 element -128; -127 to 127 is required."),
        ("scales", 0xFF, "MXINT8 scale 255, which is NaN; 0 to 254 is required."),
    ],
)
def test_bytes_that_mxint8_does_not_have_are_refused(
    made: Path, tmp_path: Path, part: str, byte: int, found: str
) -> None:
    package = Path(shutil.copytree(made / "reference", tmp_path / "p"))
    patch_array(package / "mxfp4.safetensors", f"{HEAD}.{part}", 3, bytes([byte]))
    forge(package)
    message = f"{package}: tensor {HEAD}: {found} The file is damaged; convert again."
    with Package(package) as opened, pytest.raises(PackageError) as caught:
        opened.mxint8(record_of(opened, HEAD))
    assert str(caught.value) == message
    with pytest.raises(PackageError) as caught, LoadedPackage(package, ["mxfp4"]):
        pass
    assert str(caught.value) == message
    with open_checkpoint(made / "m") as source:
        proof = {tensor.name: tensor for tensor in verify(package, source).tensors}
    assert proof[HEAD].status == "mismatch"
    assert proof[HEAD].detail == f"{HEAD}.{part} differs from what the source encodes to"


def test_released_rows_can_be_read_again(made: Path) -> None:
    with Package(made / "bsfp") as package:
        record = record_of(package, NAME)
        first = package.bsfp(record).target_rows(0, 32)
        package.release(record, 0, 32)
        assert np.array_equal(package.bsfp(record).target_rows(0, 32), first)


def test_a_closed_package_gives_nothing_more(made: Path) -> None:
    with Package(made / "bsfp") as package:
        record = record_of(package, NAME)
    with pytest.raises(ValueError, match="the checkpoint was closed"):
        package.bsfp(record)


def test_a_damaged_shard_says_which_package_it_belongs_to(made: Path, tmp_path: Path) -> None:
    package = Path(shutil.copytree(made / "bsfp", tmp_path / "p"))
    path = package / "bsfp.safetensors"
    path.write_bytes((10**9).to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(PackageError) as caught:
        Package(package)
    message = str(caught.value)
    assert message.startswith(f"{path}: the header claims 1,000,000,000 bytes; at most 100,000,000 are allowed.")
    assert message.endswith(f"It is part of the package {package}.")
