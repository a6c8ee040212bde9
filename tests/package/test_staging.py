"""What happens beside the target: resuming, refusing, replacing. Real kills are in test_killed.py."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from packages import StoppedError, files_of, flip, header_of, quantize, stop_after, stop_in

from mxconv.errors import PackageError
from mxconv.package.journal import Journal
from mxconv.verify import verify

JOURNAL = ".mxconv-journal"
NUM_TENSORS = 21
EACH: dict[str, Any] = {"max_shard_bytes": 1}  # every tensor has a shard


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m", num_shards=2)


def interrupt(source: Path, package: Path, num_tensors: int = 9, **options: Any) -> Path:
    """A partial folder with this many finished shards of a tensor."""
    with pytest.raises(StoppedError):
        quantize(source, package, stop_after(num_tensors), **EACH | options)
    assert not package.exists()
    partial = package.with_name(package.name + ".partial")
    assert len((partial / JOURNAL).read_text().splitlines()) == 1 + num_tensors
    return partial


def resume(source: Path, package: Path, **options: Any) -> int:
    """Convert, and count the tensors that an earlier run had finished."""
    lines: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "encode":
            lines.append(done)

    quantize(source, package, progress, **EACH | options)
    assert not package.with_name(package.name + ".partial").exists()
    assert not (package / JOURNAL).exists()
    return NUM_TENSORS - (len(lines) - 1)  # one call for what was finished, then one a tensor of this size


@pytest.mark.parametrize(
    ("content", "num_kept"),
    [
        (lambda text: text[:-30], 8),  # the last line cut short
        (lambda text: text + '{"shard": {"path": "mxfp4-0', 9),
        (lambda text: text + "\x00\x00\x00\n", 9),  # what a crash of the machine may leave
        (lambda text: text + '[1]\n{"shard": 3}\n{"shard": {}, "tensors": [1]}\n', 9),
        (lambda text: text.replace("\n", "\ngarbage \xff\n", 1), 9),
        (lambda text: text + "[" * 100_000 + "\n", 9),
        (lambda text: text[20:], 0),  # the fingerprint is gone: start over
        (lambda text: "", 0),
    ],
)
def test_a_damaged_journal_costs_the_shards_of_its_damaged_lines_and_no_more(
    source: Path, tmp_path: Path, content: Any, num_kept: int
) -> None:
    journal = interrupt(source, tmp_path / "p") / JOURNAL
    journal.write_text(content(journal.read_text()), encoding="latin-1")
    with pytest.raises(StoppedError):  # lines written after the damage count as well
        quantize(source, tmp_path / "p", stop_after(4), **EACH)
    assert resume(source, tmp_path / "p") == num_kept + 4
    assert verify(tmp_path / "p").lossless


@pytest.mark.parametrize("damage", ["changed", "shortened", "missing"])
def test_a_finished_shard_whose_bytes_are_others_is_written_again(source: Path, tmp_path: Path, damage: str) -> None:
    quantize(source, tmp_path / "whole", **EACH)
    partial = interrupt(source, tmp_path / "p")
    shard = partial / "mxfp4-00003-of-00015.safetensors"
    if damage == "changed":
        flip(shard, shard.stat().st_size - 5)
    elif damage == "shortened":
        os.truncate(shard, 100)
    else:
        shard.unlink()
    assert resume(source, tmp_path / "p") == 8
    assert files_of(tmp_path / "p") == files_of(tmp_path / "whole")


def test_a_shard_that_is_not_whole_is_encoded_again(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"codec": "bsfp", "max_shard_bytes": 60_000}
    with pytest.raises(StoppedError):
        quantize(source, tmp_path / "p", stop_after(12), **options)
    lines = [json.loads(line) for line in (tmp_path / "p.partial" / JOURNAL).read_text().splitlines()[1:]]
    num_finished = sum(len(line["tensors"]) for line in lines)
    assert 1 < len(lines) < num_finished < 12
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "p.partial").glob("*.safetensors")}
    assert resume(source, tmp_path / "p", **options) == num_finished
    assert all(
        (tmp_path / "p" / name).stat().st_mtime_ns == times[name] for name in (line["shard"]["path"] for line in lines)
    )
    quantize(source, tmp_path / "whole", **options)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "whole")


@pytest.mark.parametrize("name", ["lm_head.weight", "model.norm.weight"])
def test_one_changed_byte_of_the_source_with_the_same_length_and_time_costs_its_shard(
    source: Path, tmp_path: Path, name: str
) -> None:
    partial = interrupt(source, tmp_path / "p")
    was_finished = f'"{name}"' in (partial / JOURNAL).read_text()
    assert was_finished == (name == "lm_head.weight")
    index = json.loads((source / "model.safetensors.index.json").read_text())
    shard = source / index["weight_map"][name]
    times = shard.stat().st_atime_ns, shard.stat().st_mtime_ns
    header, begin = header_of(shard)
    flip(shard, begin + header[name]["data_offsets"][1] - 2, 0x01)
    os.utime(shard, ns=times)
    (partial / "left over").write_text("x")
    assert resume(source, tmp_path / "p") == 9 - was_finished
    quantize(source, tmp_path / "whole", **EACH)
    assert files_of(tmp_path / "p") == files_of(tmp_path / "whole")


def test_other_options_start_over(source: Path, tmp_path: Path) -> None:
    interrupt(source, tmp_path / "p")
    assert resume(source, tmp_path / "p", scale_rule="ceil") == 0


def test_companions_that_changed_since_are_taken_as_they_are_now(source: Path, tmp_path: Path) -> None:
    (source / "LICENSE").write_text("old")
    quantize(source, tmp_path / "whole")
    with pytest.raises(StoppedError):
        quantize(source, tmp_path / "p", stop_in("hash package"), **EACH)
    (source / "LICENSE").unlink()
    (source / "config.json").write_text("{}")
    assert resume(source, tmp_path / "p") == 15  # the others have no arrays
    assert "LICENSE" not in files_of(tmp_path / "p")
    assert files_of(tmp_path / "p")["config.json"] == b"{}"
    assert verify(tmp_path / "p").ok


def test_resuming_never_writes_into_the_files_of_the_source(source: Path, tmp_path: Path) -> None:
    before = files_of(source)
    with pytest.raises(StoppedError):  # by now the source's files are linked into the partial folder
        quantize(source, tmp_path / "p", stop_in("hash package"))
    assert (tmp_path / "p.partial/model-00001-of-00002.safetensors").stat().st_nlink == 2
    quantize(source, tmp_path / "p", scale_rule="even")
    assert files_of(source) == before


IN_THE_WAY: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a folder": ("p.partial", lambda path: write(path / "thesis.tex")),
    "a file": ("p.partial", lambda path: write(path)),
    "a link": ("p.partial", lambda path: path.symlink_to(write(path.with_name("theirs") / JOURNAL).parent)),
    "an empty folder": ("p", lambda path: path.mkdir()),
    "a file as target": ("p", lambda path: write(path)),
    "a dangling link": ("p", lambda path: path.symlink_to("none")),
    "a link to a package": ("p", lambda path: path.symlink_to("q")),
}
REFUSED = {
    "p.partial": "exists and is no interrupted conversion; this path is needed while converting. "
    "Move it away, or choose another output.",
    "p": "exists and is no package; --force replaces packages only. Choose another output, or remove it.",
}


def write(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("years of work")
    return path


@pytest.mark.parametrize("case", IN_THE_WAY)
def test_what_is_not_ours_is_refused_and_untouched(source: Path, tmp_path: Path, case: str) -> None:
    quantize(source, tmp_path / "q")
    name, make = IN_THE_WAY[case]
    make(tmp_path / name)
    before = files_of(tmp_path)
    with pytest.raises(PackageError) as caught:
        quantize(source, tmp_path / "p", force=True)
    assert str(caught.value) == f"{tmp_path / name}: {REFUSED[name]}"
    assert files_of(tmp_path) == before


def test_an_empty_partial_folder_is_what_an_early_kill_leaves(source: Path, tmp_path: Path) -> None:
    (tmp_path / "p.partial").mkdir()
    assert resume(source, tmp_path / "p") == 0


def test_a_second_conversion_into_the_same_folder_is_refused(source: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "p.partial")
    with pytest.raises(PackageError) as caught:
        quantize(source, tmp_path / "p")
    assert str(caught.value) == (
        f"{tmp_path}/p.partial: another process is converting into it; one at a time is required. "
        "Wait until it ends, or choose another output."
    )
    journal.close()
    quantize(source, tmp_path / "p")


def test_where_files_cannot_be_locked_conversions_go_on_without(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl", reason="a lock of Unix")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    quantize(source, tmp_path / "p")
    assert verify(tmp_path / "p").lossless


def test_the_folder_that_is_being_read_is_not_replaced(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "p")
    inner = write_tiny_llama(tmp_path / "p/drafts/m")
    before = files_of(tmp_path)
    with pytest.raises(PackageError) as caught:
        quantize(inner, tmp_path / "p", force=True, target="reference")
    assert str(caught.value) == (
        f"{tmp_path}/p: holds model.safetensors, which is being converted; source and package must be apart. "
        "Choose another output."
    )
    assert files_of(tmp_path) == before


def test_a_package_can_be_replaced_from_inside(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(source, tmp_path / "p", scale_rule="ceil")
    monkeypatch.chdir(tmp_path / "p")
    quantize(source, Path(), force=True)
    assert verify(tmp_path / "p").manifest.options.scale_rule == "ocp"


def test_a_folder_that_cannot_be_made_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(PackageError) as caught:
        quantize(source, tmp_path / "file" / "p")
    assert str(caught.value) == (
        f"{tmp_path}/file/p.partial/{JOURNAL}: cannot be written (File exists); a writable place is required. "
        "Check the path and its permissions."
    )
