"""A disk that is full: a file system of a few megabytes in a mount namespace of its own, then enlarged."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from checkpoints import write_safetensors

from mxconv.verify import verify

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
