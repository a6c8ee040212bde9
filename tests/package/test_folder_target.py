"""Every state in which a kill can leave a replacement, and what the next conversion makes of it."""

from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize

from mxconv.errors import PackageError
from mxconv.package.folder_target import MARKER
from mxconv.verify import verify


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m")


@pytest.fixture
def old(source: Path, tmp_path: Path) -> Path:
    """The state between the two renames: the old package stands aside, marked."""
    quantize(source, tmp_path / "p", scale_rule="ceil")
    (tmp_path / "p" / MARKER).touch()
    return (tmp_path / "p").rename(tmp_path / "p.replaced")


def test_an_old_package_that_stepped_aside_is_put_back_and_not_overwritten_without_force(
    source: Path, old: Path, tmp_path: Path
) -> None:
    before = {name: content for name, content in files_of(old).items() if name != MARKER}
    with pytest.raises(PackageError, match=r"/p: exists; nothing is overwritten\."):
        quantize(source, tmp_path / "p")
    assert files_of(tmp_path / "p") == before
    assert not old.exists()


def test_with_force_it_is_put_back_and_then_replaced(source: Path, old: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p", force=True)
    assert verify(tmp_path / "p").manifest.options.scale_rule == "ocp"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "p"]


@pytest.mark.parametrize("left", ["all", "some", "marker"])
def test_what_is_left_of_an_old_package_goes_once_the_new_one_stands(
    source: Path, old: Path, tmp_path: Path, left: str
) -> None:
    quantize(source, tmp_path / "q")
    (tmp_path / "q").rename(tmp_path / "p")
    for path in old.iterdir():
        if path.name != MARKER and (left == "marker" or (left == "some" and path.suffix == ".json")):
            path.unlink()
    quantize(source, tmp_path / "p", force=True, scale_rule="even")
    assert verify(tmp_path / "p").manifest.options.scale_rule == "even"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "p"]


def test_half_an_old_package_is_never_put_back(source: Path, old: Path, tmp_path: Path) -> None:
    (old / "mxconv.json").unlink()
    quantize(source, tmp_path / "p")
    assert verify(tmp_path / "p").ok
    assert not old.exists()


def test_an_empty_folder_is_what_the_last_step_of_a_deletion_leaves(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p")
    (tmp_path / "p.replaced").mkdir()
    quantize(source, tmp_path / "p", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "p"]


def test_a_folder_that_only_has_the_name_is_left_alone_and_hinders_replacing_alone(
    source: Path, tmp_path: Path
) -> None:
    theirs = tmp_path / "p.replaced"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    quantize(source, tmp_path / "p")
    with pytest.raises(PackageError) as caught:
        quantize(source, tmp_path / "p", force=True)
    assert str(caught.value) == (
        f"{theirs}: exists; the old package has to wait there while it is replaced. Move it away."
    )
    assert (theirs / "thesis.tex").read_text() == "years of work"
    assert verify(tmp_path / "p").ok
