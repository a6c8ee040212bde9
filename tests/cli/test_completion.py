"""What a shell is offered, by the program that it asks; and a real bash that was taught to ask."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from mxconv.codecs.mxfp4 import SCALE_RULES
from mxconv.conversion.options import Codec
from mxconv.cost.hardware import hardware_names
from mxconv.drafts.kinds import KINDS
from mxconv.kernels.engine import kernel_names, native_names


@pytest.fixture
def offered(run: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Words that complete the last one of a line."""

    def complete(line: str) -> list[str]:
        words = [*line.split(), *([""] if line.endswith(" ") else [])]
        with monkeypatch.context() as patch:
            patch.setenv("_MXCONV_COMPLETE", "complete_bash")
            patch.setenv("COMP_WORDS", line)
            patch.setenv("COMP_CWORD", str(len(words) - 1))
            found = run()
        assert found.stderr == ""
        return list(found.stdout.split())

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mxconv quantize s --codec ", list(get_args(Codec))),
        ("mxconv quantize s --scale-rule ", list(SCALE_RULES)),
        ("mxconv quantize s --scale-rule e", ["even"]),
        ("mxconv quantize s --outliers ", ["exact", "rescale"]),
        ("mxconv quantize s --segments p", ["paper"]),
        ("mxconv quantize s --draft ", [name + ":" * bool(kind.subject) for name, kind in KINDS.items()]),
        ("mxconv generate p --kernel ", list(kernel_names())),
        ("mxconv generate p --accept ", ["coupled", "rejection", "block"]),
        ("mxconv generate p --tree ", ["auto", "chain"]),
        ("mxconv verify p --kernel n", ["numpy"]),
        ("mxconv bench kernels --kernel ", [*native_names(), "all"]),
        ("mxconv bench kernels --only mx", ["mxint8", "mx2", "mxfp4-int8", "mxfp4-fp32", "mxfp4-bf16"]),
        ("mxconv cost --hardware ", [*hardware_names(), "list"]),
        ("mxconv export p --to c", ["compressed-tensors"]),
        ("mxconv exp", ["export"]),
    ],
)
def test_names_are_offered(line: str, words: list[str], offered: Callable[[str], list[str]]) -> None:
    assert offered(line) == words


@pytest.mark.parametrize("option", ["codec", "lm-head", "on-nonfinite", "residual-bits", "dtype", "target"])
def test_every_name_that_is_offered_is_taken(
    option: str, offered: Callable[[str], list[str]], run: Any, source: Path, tmp_path: Path
) -> None:
    words = offered(f"mxconv quantize s --{option} ")
    assert words
    for word in words:
        codec = "bsfp" if option == "residual-bits" or word in ("bsfp", "exact") else "mxfp4"
        arguments = ["--dry-run", "--codec", codec, f"--{option}", word]
        outcome = run("quantize", source, "-o", tmp_path / "p", *arguments)
        assert outcome.exit_code != 2, outcome.stderr  # 1 where these weights cannot be had so


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_a_bash_that_installed_it_completes(tmp_path: Path) -> None:
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "mxconv").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mxconv.cli.main "$@"\n')
    (scripts / "mxconv").chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    script = """
        mxconv --install-completion || exit 1
        . ~/.bashrc
        complete -p mxconv
        COMP_WORDS=(mxconv quantize source --codec "") COMP_CWORD=4
        _mxconv_completion mxconv
        echo "offered: ${COMPREPLY[*]}"
    """
    taught = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert taught.returncode == 0, taught.stderr
    assert "bash completion installed" in taught.stdout
    assert taught.stdout.splitlines()[-1] == "offered: mxfp4 bsfp"
