from pathlib import Path

import pytest

from mxconv.errors import MxconvError
from mxconv.report.output_file import check_output, write_output


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
