"""Packages for the tests: made by a real conversion, read back byte for byte, forged with correct hashes."""

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.open_source import open_source
from mxconv.package.manifest import Manifest
from mxconv.package.staging import Target
from mxconv.progress import Progress, silent
from mxconv.verify import Verification, verify

MANIFEST = "mxconv.json"


def quantize(source: Path, package: Target, progress: Progress = silent, **options: Any) -> Manifest:
    """Convert as `mxconv quantize` does."""
    with open_source(source) as checkpoint:
        return convert(checkpoint, package, QuantizeOptions(**options), progress)


def compare(package: Path, source: Path) -> Verification:
    """Verify a package against its source."""
    with open_source(source) as checkpoint:
        return verify(package, checkpoint)


def check_exact(package: Path, source: Path) -> None:
    """Verify that every tensor comes back bit for bit, with the source and without."""
    for verification in (verify(package), compare(package, source)):
        assert verification.ok and verification.lossless, verification
        assert verification.num_bit_exact == len(verification.tensors)


class StoppedError(Exception):
    """What `stop_after` raises."""


def stop_after(num_tensors: int) -> Progress:
    """A progress callback that ends a conversion by one thread once this many tensors begin to be encoded."""
    calls = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal calls
        if stage == "encode":
            calls += 1
            if calls > num_tensors + 1:  # the first call tells what an earlier run finished
                raise StoppedError

    return progress


def stop_in(wanted: str) -> Progress:
    """A progress callback that ends a conversion in a stage."""

    def progress(stage: str, done: int, total: int) -> None:
        if stage == wanted:
            raise StoppedError

    return progress


def files_of(package: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones included, by relative path."""
    paths = [path for path in sorted(package.rglob("*")) if path.is_file()]
    return {path.relative_to(package).as_posix(): path.read_bytes() for path in paths}


def forge(package: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Change the manifest, then make all its hashes and lengths true again: what an attacker would do."""
    members = json.loads((package / MANIFEST).read_bytes())
    for record in members["files"]:
        path = package / record["path"]
        if path.is_file():
            content = path.read_bytes()
            record |= {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change(members)
    (package / MANIFEST).write_text(sealed_text(members, "manifest_sha256"))


def sealed_text(members: dict[str, Any], digest: str = "recipe_sha256") -> str:
    """The text of a manifest or a recipe, its digest true again."""
    blank = json.dumps(members | {digest: "0" * 64}, indent=1)
    return hashlib.sha256(blank.encode()).hexdigest().join(blank.rsplit("0" * 64, 1))


def with_compact_source(members: dict[str, Any]) -> dict[str, Any]:
    """A recipe's members as a version before wrote them for a fine-tune that it sent along."""
    further = {"path": "source/model.safetensors.compact", "num_bytes": 1, "sha256": "0" * 64}
    base = {"id": "org/base", "commit": "c0ffee"}
    return members | {"base": base, "further": [*members["further"], further], "created_by": "mxconv 0.1.0"}


def add_files(package: Path, copy: Path, sizes: list[int]) -> Path:
    """A copy of a package with further files, `further-0.safetensors` and so on, of random bytes."""
    shutil.copytree(package, copy)
    names = [f"further-{number}.safetensors" for number in range(len(sizes))]
    for name, num_bytes in zip(names, sizes, strict=True):
        (copy / name).write_bytes(random.Random(name).randbytes(num_bytes))

    def add(members: dict[str, Any]) -> None:
        for name in names:
            raw = (copy / name).read_bytes()
            sha256 = hashlib.sha256(raw).hexdigest()
            members["files"].append({"path": name, "num_bytes": len(raw), "sha256": sha256})

    forge(copy, add)
    return copy


def header_of(path: Path) -> tuple[dict[str, Any], int]:
    """The header of a safetensors file, and where its tensors begin."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), 8 + length


def patch_array(path: Path, name: str, offset: int, content: bytes) -> None:
    """Overwrite bytes of one array of a safetensors file; a negative offset counts from its end."""
    header, begin = header_of(path)
    first, last = header[name]["data_offsets"]
    place = begin + (first if offset >= 0 else last) + offset
    assert begin + first <= place and place + len(content) <= begin + last
    patch(path, place, content)


def patch(path: Path, offset: int, content: bytes) -> None:
    """Overwrite bytes of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    """Flip bits of one byte of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))
