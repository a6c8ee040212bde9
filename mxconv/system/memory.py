"""The most memory that this process had."""

import sys
from pathlib import Path

import psutil

STATUS = Path("/proc/self/status")


def peak_rss_bytes() -> int:
    """The most memory that this process had resident: Linux's VmHWM, since ru_maxrss begins at the parent's."""
    if STATUS.is_file():
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024
