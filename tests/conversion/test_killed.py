"""Real conversions, killed or out of disk: there is no package or a whole one, and the same command brings it about."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors
from packages import files_of, quantize

from mxconv.verify import verify

NUM_TENSORS = 64
KEYWORDS: dict[str, dict[str, Any]] = {  # a shard has four tensors
    "mxfp4": {"codec": "mxfp4", "scale_rule": "mse", "max_shard_bytes": 600_000},
    "bsfp": {"codec": "bsfp", "segments": "paper", "max_shard_bytes": 1_700_000},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """32 MB in 64 matrices of one size; the time to encode them is the time to be killed in."""
    rng = np.random.default_rng(0)
    block = (rng.standard_normal((512, 512)) * 0.02).astype(ml_dtypes.bfloat16)
    tensors = {f"layers.{n:02}.weight": np.roll(block, 1000 * n) for n in range(NUM_TENSORS)}
    return write_safetensors(tmp_path_factory.mktemp("m") / "model.safetensors", tensors)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    """What an uninterrupted conversion gives, by codec."""
    made: dict[str, dict[str, bytes]] = {}

    def of(codec: str) -> dict[str, bytes]:
        if codec not in made:
            package = tmp_path_factory.mktemp("whole") / codec
            quantize(source, package, **KEYWORDS[codec])
            made[codec] = files_of(package)
        return made[codec]

    return of


def start(source: Path, package: Path, codec: str, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "mxconv.cli.main", "quantize", str(source), "-o", str(package), "--threads", "2"]
    named = [word for name, value in KEYWORDS[codec].items() for word in ("--" + name.replace("_", "-"), str(value))]
    return subprocess.Popen([*command, *named, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_when(process: subprocess.Popen[bytes], is_time: Callable[[], bool]) -> None:
    """Send SIGKILL as soon as it is time, unless the process ends before."""
    while process.poll() is None and not is_time():
        time.sleep(0.001)
    process.kill()
    _, errors = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()


def num_finished(partial: Path) -> int:
    """The number of tensors in shards that are whole."""
    journal = partial / ".mxconv-journal"
    lines = journal.read_text().split("\n")[1:-1] if journal.exists() else []
    return sum(len(json.loads(line)["tensors"]) for line in lines)


def finish(source: Path, package: Path, codec: str, **options: bool) -> int:
    """Run the same conversion again, and count the tensors that it did not have to encode."""
    reports: list[tuple[int, int]] = []

    def progress(stage: str, done: int, total: int) -> None:
        if stage == "encode":
            reports.append((done, total))

    quantize(source, package, progress, **KEYWORDS[codec], **options)
    done, total = reports[0]
    return done * NUM_TENSORS // total


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_conversion_killed_at_any_moment_leaves_nothing_or_resumes_to_the_same_bytes(
    source: Path, whole: Callable[[str], dict[str, bytes]], tmp_path: Path, codec: str
) -> None:
    moments = random.Random(codec)
    num_in_the_middle = 0
    for number in range(4):
        package = tmp_path / f"p{number}"
        partial = package.with_name(package.name + ".partial")
        process = start(source, package, codec)
        if number % 2:  # at any time, beginning with the start of the interpreter
            deadline = time.monotonic() + moments.uniform(0.2, 2.0)
            kill_when(process, lambda deadline=deadline: time.monotonic() > deadline)
        else:  # while tensors are encoded
            wanted = moments.randrange(1, NUM_TENSORS - 4)
            kill_when(process, lambda partial=partial, wanted=wanted: num_finished(partial) >= wanted)
        if not package.exists():
            finished = num_finished(partial)
            num_in_the_middle += 0 < finished < NUM_TENSORS
            assert finish(source, package, codec) == finished
        found = files_of(package)
        found.pop(".mxconv-journal", None)  # killed between the rename and the last clean-up
        assert found == whole(codec)
        assert not partial.exists()
    assert num_in_the_middle >= 1
    assert verify(package).lossless


def test_a_replacement_killed_at_any_moment_leaves_the_old_or_the_new_package(
    source: Path, whole: Callable[[str], dict[str, bytes]], tmp_path: Path
) -> None:
    moments = random.Random(3)
    package, aside = tmp_path / "p", tmp_path / "p.mxconv-replaced"
    quantize(source, package, codec="bsfp", segments="paper")
    for number in range(2):
        old = {name: content for name, content in files_of(package).items() if not name.startswith(".")}
        process = start(source, package, "mxfp4", "--force")
        if number % 2:
            kill_when(process, lambda: aside.exists() or num_finished(tmp_path / "p.partial") >= NUM_TENSORS)
        else:
            wanted = moments.randrange(1, NUM_TENSORS - 4)
            kill_when(process, lambda wanted=wanted: num_finished(tmp_path / "p.partial") >= wanted)
        places = [path for path in (package, aside) if (path / "mxconv.json").exists()]
        contents = [
            {name: content for name, content in files_of(path).items() if not name.startswith(".")} for path in places
        ]
        assert old in contents or whole("mxfp4") in contents
        if not package.exists():
            assert contents == [old]
    finish(source, package, "mxfp4", force=True)
    assert files_of(package) == whole("mxfp4")
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


SCRIPT = """
set -u
mount -t tmpfs -o size="$SIZE" tmpfs "$DISK"
run() { "$PYTHON" -m mxconv.cli.main quantize "$SOURCE" -o "$DISK/p" $OPTIONS; }
run 2>"$OUT/errors"; echo $? >"$OUT/first"
ls -A "$DISK" >"$OUT/left"
mount -o remount,size=64m "$DISK"
run; echo $? >"$OUT/second"
cp -r "$DISK/p" "$OUT/p"
"""


def namespace() -> list[str] | None:
    """The command that gives a mount namespace here, or None."""
    for prefix in (["unshare", "-m"], ["unshare", "-rm"]):
        if shutil.which("unshare"):
            probe = [*prefix, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return prefix
    return None


@pytest.mark.parametrize(
    ("options", "num_kilobytes", "file"),
    [
        ("--codec bsfp --segments paper", 1000, "bsfp.safetensors"),  # found when the shard is laid out
        ("--codec mxfp4", 2000, "model.safetensors"),  # codes fit; the target, from another disk, does not
    ],
)
def test_a_full_disk_is_an_error_that_names_the_file_and_the_conversion_resumes_once_there_is_room(
    tmp_path: Path, options: str, num_kilobytes: int, file: str
) -> None:
    prefix = namespace()
    if prefix is None:
        pytest.skip("no mount namespace can be had here (unshare -m, unshare -rm), so no small disk")
    rng = np.random.default_rng(0)
    tensors = {f"w{n}": rng.standard_normal((256, 512)).astype(ml_dtypes.bfloat16) for n in range(8)}  # 2.1 MB
    source = write_safetensors(tmp_path / "m" / "model.safetensors", tensors)
    disk, out = tmp_path / "disk", tmp_path / "out"
    disk.mkdir()
    out.mkdir()
    values = {"DISK": disk, "OUT": out, "SOURCE": source, "SIZE": f"{num_kilobytes}k", "OPTIONS": options}
    environment = os.environ | {"PYTHON": sys.executable} | {key: str(value) for key, value in values.items()}
    subprocess.run([*prefix, "sh", "-c", SCRIPT], env=environment, check=True, stdout=subprocess.DEVNULL)

    assert (out / "first").read_text() == "1\n"
    errors = (out / "errors").read_text()
    assert errors.startswith(f"mxconv: {disk}/p.partial/{file}: No space left on device, ")
    assert " bytes are free; more space is required. " in errors
    assert errors.endswith("Free some and run the same command again: it goes on where it stopped.\n")
    assert (out / "left").read_text() == "p.partial\n"
    assert (out / "second").read_text() == "0\n"
    assert verify(out / "p").lossless
