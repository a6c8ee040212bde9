"""The processor's name, and how much of it this process may use."""

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
REGISTRY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"


def usable_processors() -> int:
    """How many processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def cpu_name() -> str:
    """As the system knows it, "Apple M2" or "AMD Ryzen 7 7840U"; else its architecture."""
    return _from_cpuinfo(CPUINFO) or _from_sysctl() or _from_registry() or platform.processor() or platform.machine()


def _from_cpuinfo(path: Path) -> str | None:
    """Linux. ARM processors have numbers there in place of a name."""
    if not path.is_file():
        return None
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    if "model name" in values:
        return values["model name"]
    if "CPU implementer" in values:
        return f"{platform.machine()} {values['CPU implementer']}-{values.get('CPU part', '?')}"
    return None


def _from_sysctl() -> str | None:
    """macOS."""
    if sys.platform != "darwin":
        return None
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _from_registry() -> str | None:
    """Windows."""
    if sys.platform != "win32":
        return None
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, REGISTRY) as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    except OSError:
        return None
