"""Which kernels an aarch64 processor gets, by what Linux says of it; every processor that the emulator has."""

import ctypes
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from mxconv.kernels.engine import native_names

pytestmark = pytest.mark.skipif(
    platform.machine() != "aarch64" or sys.platform != "linux" or not native_names(),
    reason="this is no aarch64 Linux with native kernels; tests/aarch64/run emulates one",
)

AT_HWCAP, AT_HWCAP2 = 16, 26
ASIMDDP, I8MM, BF16 = 1 << 20, 1 << 13, 1 << 14  # Documentation/arm64/elf_hwcaps.rst of Linux

KERNELS = {
    "cortex-a72": ["portable"],
    "neoverse-n1": ["neon", "portable"],
    "max": ["neonbf16", "neoni8mm", "neon", "portable"],
}


def test_the_kernels_are_those_whose_instructions_linux_lists() -> None:
    auxiliary = ctypes.CDLL(None).getauxval
    auxiliary.restype = ctypes.c_ulong
    first, second = auxiliary(ctypes.c_ulong(AT_HWCAP)), auxiliary(ctypes.c_ulong(AT_HWCAP2))
    expected = ["portable"]
    if first & ASIMDDP:
        expected.insert(0, "neon")
        if second & I8MM:
            expected.insert(0, "neoni8mm")
            if second & BF16:
                expected.insert(0, "neonbf16")
    assert list(native_names()) == expected


@pytest.mark.parametrize("processor", KERNELS)
def test_each_processor_gets_its_best(processor: str) -> None:
    python = Path(sys.executable).with_name(f"python-{processor}")
    if not python.exists():
        pytest.skip("not emulated: the processor is what it is")
    code = "from mxconv.kernels.engine import native_names; print(*native_names())"
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == KERNELS[processor]
