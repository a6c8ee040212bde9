"""Damaged packages: never accepted, never a crash. What disks and networks do; no hash fits afterwards."""

import os
import random
from pathlib import Path

from forged_members import error_of, is_accepted
from packages import MANIFEST, flip

from mxconv.verify import verify

NUM_FLIPS = 12  # a file


def test_no_flipped_byte_of_any_file_is_accepted(package: Path) -> None:
    assert is_accepted(package)
    for path in sorted(path for path in package.rglob("*") if path.is_file()):
        numbers = random.Random(path.name)
        num_bytes = path.stat().st_size
        for _ in range(NUM_FLIPS):
            place, mask = numbers.randrange(num_bytes), numbers.randrange(1, 256)
            flip(path, place, mask)
            assert not is_accepted(package), (path, place, mask)
            flip(path, place, mask)
    assert is_accepted(package)


def test_no_shortened_lengthened_missing_or_replaced_file_is_accepted(package: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for path in sorted(path for path in package.rglob("*") if path.is_file()):
        content = path.read_bytes()
        half = len(content) // 2
        for changed in (b"", content[:7], content[:half], content[:-1], content + b"\0", content + content):
            path.write_bytes(changed)
            assert not is_accepted(package), (path, len(changed))
        path.unlink()
        assert not is_accepted(package), path
        path.mkdir()
        assert not is_accepted(package), path
        path.rmdir()
        outside.write_bytes(content)
        for link in (outside, path, tmp_path / "none", Path("/dev/zero")):
            path.symlink_to(link)
            if path.name != MANIFEST or link != outside:  # a manifest may be a link, as in the cache of the Hub client
                assert not is_accepted(package), (path, link)
            path.unlink()
        os.mkfifo(path)
        assert not is_accepted(package), path
        path.unlink()
        path.write_bytes(content)
    assert is_accepted(package)


def test_what_is_wrong_with_a_file_is_said(package: Path, tmp_path: Path) -> None:
    config = package / "config.json"
    content = config.read_bytes()
    config.write_bytes(content + b" ")
    assert error_of(package) == (
        f"{config}: {len(content) + 1} bytes; the manifest says {len(content)}. "
        "The file is damaged or was replaced; convert again."
    )
    config.unlink()
    assert error_of(package).startswith(f"{config}: no such file; a readable file is required.")
    (tmp_path / "outside").write_bytes(content)
    config.symlink_to(tmp_path / "outside")
    assert error_of(package) == (f"{config}: leads out of the package; files inside it are required. Convert again.")
    config.unlink()
    config.symlink_to(config)
    assert error_of(package).startswith(f"{config}: its symbolic links form a loop;")
    config.unlink()
    config.write_bytes(content.replace(b"64", b"65").replace(b"16", b"17"))
    assert verify(package).damaged_files == ["config.json"]


def test_a_link_inside_the_package_is_followed(package: Path) -> None:
    (package / "config.json").rename(package / "real.json")
    (package / "config.json").symlink_to("real.json")
    assert is_accepted(package)
