"""What a processor is called, by the words of several systems."""

import os
import platform
from pathlib import Path

import pytest

from mxconv.kernels import engine
from mxconv.system import processor
from mxconv.system.processor import cpu_name, usable_processors

X86 = (
    "processor\t: 0\nmodel name\t: Intel(R) Core(TM) Ultra 9 285K\nflags\t\t: avx2\n\nprocessor\t: 1\nmodel name\t: x\n"
)
ARM = "processor\t: 0\nBogoMIPS\t: 48.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (X86, "Intel(R) Core(TM) Ultra 9 285K"),
        (ARM, f"{platform.machine()} 0x41-0xd4f"),
        ("processor\t: 0\n", platform.processor() or platform.machine()),
        (None, platform.processor() or platform.machine()),
    ],
)
def test_the_name_is_the_systems_or_else_the_architecture(
    text: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", path)
    for ask in ("_from_sysctl", "_from_registry"):  # of the system on which the test runs
        monkeypatch.setattr(processor, ask, lambda: None)
    cpu_name.cache_clear()
    assert cpu_name() == name
    cpu_name.cache_clear()


def test_a_process_uses_what_it_may_or_else_all_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(os, "sched_getaffinity"):
        assert usable_processors() == len(os.sched_getaffinity(0))
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert usable_processors() == os.cpu_count()
    chosen = engine.choose_engine()
    assert chosen is None or chosen.num_threads == min(os.cpu_count() or 1, engine.MAX_THREADS)
