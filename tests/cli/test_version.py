"""`mxconv --version`: everything that a report of a defect has to say."""

import platform
from typing import Any

import pytest

import mxconv
from mxconv.kernels.engine import kernel_names, usable_processors
from mxconv.system.processor import cpu_name


def test_it_names_version_kernel_processor_threads_and_system(run: Any) -> None:
    outcome = run("--version")
    assert outcome.exit_code == 0
    version, kernel, processor, system = outcome.stdout.splitlines()
    best, *others = kernel_names()
    assert version == f"mxconv {mxconv.__version__}"
    assert kernel.split()[:2] == ["kernel", best]
    assert all(name in kernel for name in others)
    threads = f"{usable_processors()} thread" + ("s" if usable_processors() > 1 else "")
    assert processor == f"processor  {cpu_name()}, {threads}"
    assert system == f"system     {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def test_a_forced_kernel_is_the_one_that_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", "numpy")
    assert run("--version").stdout.splitlines()[1].split()[:2] == ["kernel", "numpy"]


def test_an_unknown_kernel_is_an_error_after_the_version(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXCONV_KERNEL", "sse9")
    outcome = run("--version")
    assert outcome.exit_code == 1
    assert outcome.stdout == f"mxconv {mxconv.__version__}\n"
    assert outcome.stderr.startswith("mxconv: MXCONV_KERNEL: 'sse9'; on this processor one of ")
