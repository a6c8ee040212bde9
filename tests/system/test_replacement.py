"""Files and folders that replace others, and every state in which a kill can leave that."""

from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import files_of, quantize

from mxconv.errors import MxconvError, PackageError
from mxconv.system.disk import aside, check_output, recover, write_output
from mxconv.verify import verify


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m", hidden_size=16)


@pytest.fixture
def old(source: Path, tmp_path: Path) -> Path:
    """The state between the two renames: the old package stands aside."""
    quantize(source, tmp_path / "p", scale_rule="ceil")
    return (tmp_path / "p").rename(aside(tmp_path / "p"))


def test_an_old_package_that_stepped_aside_is_put_back_and_replaced_with_force_alone(
    source: Path, old: Path, tmp_path: Path
) -> None:
    before = files_of(old)
    with pytest.raises(PackageError, match=r"/p: exists; nothing is overwritten\."):
        quantize(source, tmp_path / "p")
    assert files_of(tmp_path / "p") == before
    (tmp_path / "p").rename(old)
    quantize(source, tmp_path / "p", force=True)
    assert verify(tmp_path / "p").manifest.options.scale_rule == "ocp"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "p"]


@pytest.mark.parametrize("left", ["*", "*.json", "nothing"])
def test_what_is_left_of_an_old_package_goes_once_the_new_one_is_in_place(
    source: Path, old: Path, tmp_path: Path, left: str
) -> None:
    quantize(source, tmp_path / "q")
    (tmp_path / "q").rename(tmp_path / "p")
    for path in set(old.iterdir()) - set(old.glob(left)):
        path.unlink()
    quantize(source, tmp_path / "p", force=True, scale_rule="even")
    assert verify(tmp_path / "p").manifest.options.scale_rule == "even"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "p"]


def test_half_an_old_package_is_never_put_back(source: Path, old: Path, tmp_path: Path) -> None:
    (old / "mxconv.json").unlink()
    quantize(source, tmp_path / "p")
    assert verify(tmp_path / "p").ok
    assert not old.exists()


@pytest.mark.parametrize("name", ["mxconv.json", "mxconv_export.json"])
def test_packages_and_exports_do_not_take_each_others_old_folder(tmp_path: Path, name: str) -> None:
    (old := aside(tmp_path / "p")).mkdir()
    (old / name).write_text("{}")
    recover(tmp_path / "p")
    assert (tmp_path / "p" / name).read_text() == "{}" and not old.exists()


def test_an_existing_file_is_refused_without_force(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    check_output(path, force=False)
    path.write_text("mine")
    with pytest.raises(
        MxconvError, match=r"page\.html: exists; nothing is overwritten\. Choose another name, or give --fo"
    ):
        check_output(path, force=False)
    check_output(path, force=True)


def test_a_folder_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MxconvError, match=r": is a folder; a file to write is required\. Choose another name"):
        check_output(tmp_path, force=True)
    with pytest.raises(MxconvError, match=r"page\.html: its folder .*void does not exist; it must\. Create it first"):
        check_output(tmp_path / "void" / "page.html", force=True)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def fail(partial: Path) -> None:
        partial.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(MxconvError, match=r"page\.html: cannot be written \(No space left on device\)\. Check space"):
        write_output(path, fail)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]
    assert path.read_text() == "old"
    write_output(path, lambda partial: partial.write_text("new") and None)
    assert path.read_text() == "new"
