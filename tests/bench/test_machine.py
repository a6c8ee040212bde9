"""The machine's own words about itself."""

import subprocess
from pathlib import Path

import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")

import mxconv  # noqa: E402
from mxconv.bench.machine import DEFAULT_CACHE_BYTES, last_level_cache_bytes, this_machine  # noqa: E402


def test_the_largest_listed_cache_is_the_last_level(tmp_path: Path) -> None:
    for index, text in enumerate(("32K\n", "1024K\n", "32M\n", "junk\n")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(text)
    assert last_level_cache_bytes(tmp_path) == 32 << 20


def test_a_cache_that_nobody_lists_counts_as_64_mib(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path / "absent") == DEFAULT_CACHE_BYTES == 64 << 20


def test_a_machine_names_its_processor_compiler_and_sources() -> None:
    machine = this_machine(3)
    assert machine.cpu
    assert machine.threads == 3
    assert _native.compiler() in machine.compiler
    root = Path(mxconv.__file__).parents[1]
    if (root / ".git").exists():
        head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        assert machine.commit is not None
        assert machine.commit.rstrip("+") == head.stdout.strip()


def test_an_installed_package_has_no_commit_even_inside_another_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(mxconv, "__file__", str(tmp_path / "site-packages" / "mxconv" / "__init__.py"))
    assert this_machine(1).commit is None
