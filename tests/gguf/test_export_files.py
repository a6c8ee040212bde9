"""Where exported files go: one a level, nothing overwritten, nothing left where something is wrong."""

import re
from pathlib import Path
from typing import Any

import pytest
from exported_gguf import read
from gguf_models import write_model
from packages import quantize

from mxconv.errors import MxconvError, PackageError
from mxconv.interop.gguf_export import export_gguf


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    quantize(write_model(folder / "source"), folder / "package")
    return folder / "package"


@pytest.mark.parametrize(
    ("level", "files"),
    [(None, ["out-BF16.gguf", "out-MXFP4.gguf"]), ("target", ["out-BF16.gguf"]), ("draft", ["out-MXFP4.gguf"])],
)
def test_a_folder_gets_a_file_a_level(package: Path, level: Any, files: list[str], tmp_path: Path) -> None:
    assert export_gguf(package, tmp_path / "out", level=level).files == files
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == files


def test_nothing_is_overwritten_without_force(package: Path, tmp_path: Path) -> None:
    existing = tmp_path / "out" / "out-MXFP4.gguf"
    existing.parent.mkdir()
    existing.write_text("mine")
    with pytest.raises(MxconvError, match=re.escape(f"{existing}: exists; nothing is overwritten. Choose another")):
        export_gguf(package, tmp_path / "out")
    assert [path.name for path in existing.parent.iterdir()] == [existing.name] and existing.read_text() == "mine"
    export_gguf(package, tmp_path / "out", force=True)
    assert len(read(existing)) == 21


def test_progress_ends_with_all_bytes(package: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    export_gguf(package, tmp_path / "out", progress=lambda *call: calls.append(call))
    assert calls[-1][1] == calls[-1][2] > 0 and {call[0] for call in calls} == {"export"}
    assert [call[1] for call in calls] == sorted(call[1] for call in calls)


def test_a_place_that_cannot_be_a_folder_is_refused(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PackageError, match=r"file: cannot be made a folder \(File exists\); one is required"):
        export_gguf(package, tmp_path / "file")
    with pytest.raises(MxconvError, match=r"its folder .* does not exist"):
        export_gguf(package, tmp_path / "none" / "a.gguf")


def test_damage_is_noticed_and_leaves_no_file(package: Path, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source")
    quantize(source, tmp_path / "package")
    weights = tmp_path / "package" / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-9] ^= 1
    weights.unlink()
    weights.write_bytes(raw)
    with pytest.raises(PackageError, match=r"tensor \S+: SHA-256 \w{16}...; the recorded \w{16}... is required"):
        export_gguf(tmp_path / "package", tmp_path / "out.gguf", level="target")
    assert not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".*gguf"))
    with pytest.raises(PackageError, match="SHA-256"):
        export_gguf(tmp_path / "package", tmp_path / "out")
    assert not (tmp_path / "out").exists()
