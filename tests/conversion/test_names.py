import json
import shutil
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

from mxconv.errors import CheckpointError
from mxconv.verify import verify


def test_a_weight_file_of_the_name_of_ours_is_refused_before_it_could_be_written_to(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    weights = (folder / "model.safetensors").rename(folder / "mxfp4.safetensors")
    before = weights.read_bytes()
    with pytest.raises(CheckpointError) as caught:
        quantize(folder, tmp_path / "p")
    assert str(caught.value) == (
        f"{weights}: has the name of a file that mxconv writes; another name is required. Rename it."
    )
    assert weights.read_bytes() == before


def test_where_the_weights_do_not_go_along_their_file_may_have_any_name(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    weights = (folder / "model.safetensors").rename(folder / "bsfp.safetensors")
    before = weights.read_bytes()
    quantize(folder, tmp_path / "p", codec="bsfp", segments="paper")
    assert verify(tmp_path / "p").lossless
    assert weights.read_bytes() == before


def test_a_file_name_that_no_manifest_may_hold_is_refused_at_the_start(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    (folder / "LICENSE:old").write_text("x")
    with pytest.raises(CheckpointError) as caught:
        quantize(folder, tmp_path / "p")
    assert str(caught.value) == (
        f"{folder}/LICENSE:old: path 'LICENSE:old'; a relative path of plain names joined by '/' is required. "
        "Rename it."
    )


def test_shards_in_a_folder_of_their_own_keep_their_place(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m", num_shards=2)
    (folder / "weights").mkdir()
    for shard in folder.glob("*.safetensors"):
        shard.rename(folder / "weights" / shard.name)
    index = folder / "model.safetensors.index.json"
    members = json.loads(index.read_text())
    members["weight_map"] = {name: f"weights/{shard}" for name, shard in members["weight_map"].items()}
    index.write_text(json.dumps(members))
    manifest = quantize(folder, tmp_path / "p")
    assert manifest.levels[0].files == [f"weights/model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    verification = verify(tmp_path / "p")
    assert verification.ok and verification.lossless


def test_levels_have_names_of_their_own(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    for place in ("a/tiny", "b/tiny", "mxfp4"):
        shutil.copytree(folder, tmp_path / place)
    drafts = tuple(f"checkpoint:{tmp_path / place}" for place in ("a/tiny", "b/tiny", "mxfp4"))
    levels = quantize(folder, tmp_path / "p", drafts=drafts).levels
    assert [level.name for level in levels] == ["target", "mxfp4", "tiny", "tiny-2", "mxfp4-2"]
    assert [level.path for level in levels[2:]] == ["drafts/1-tiny", "drafts/2-tiny-2", "drafts/3-mxfp4-2"]
