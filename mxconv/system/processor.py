"""The processor's name, how much of it and of memory this process may use, and advice about pages of files."""

import mmap
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import IO

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


STATUS, MEMORY = Path("/proc/self/status"), Path("/proc/meminfo")
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def peak_rss_bytes() -> int:
    """The most memory that this process had resident: Linux's VmHWM, since ru_maxrss begins at the parent's."""
    if (found := _status_bytes("VmHWM")) is not None:
        return found
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def anonymous_bytes() -> int:
    """Memory of this process that belongs to no file: Linux's RssAnon, elsewhere the most that it had resident."""
    found = _status_bytes("RssAnon")
    return peak_rss_bytes() if found is None else found


def _status_bytes(key: str) -> int | None:
    """Linux's count of this process' bytes; None elsewhere."""
    text = STATUS.read_text(encoding="ascii", errors="replace") if STATUS.is_file() else ""
    found = [int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(f"{key}:")]
    return found[0] if found else None


def available_bytes() -> int:
    """Memory that this process can still take without others losing theirs; 0 where the system does not say.

    Limits of containers count: those of the process' control group and of the groups around it. Version 1 counts files
    that the system can drop as used, so that there what belongs to no file is taken.
    """
    rooms = [0]
    if MEMORY.is_file():
        text = MEMORY.read_text(encoding="ascii", errors="replace")
        rooms = [int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable:")]
    lines = OWN_GROUP.read_text().splitlines() if OWN_GROUP.is_file() else ["0::/"]
    for _, controllers, own in (line.split(":", 2) for line in lines):
        if controllers not in ("", "memory"):
            continue
        home = GROUPS / controllers / own.lstrip("/")
        for group in (home, *home.parents):
            limit, used = group / "memory.max", group / "memory.current"
            if controllers:
                limit, used = group / "memory.limit_in_bytes", group / "memory.stat"
            if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdecimal():
                rooms.append(max(int(most) - int(used.read_text().rpartition("total_rss ")[2].split()[0]), 0))
    return min(rooms, default=0)


NEIGHBOUR_BYTES = 1 << 21  # with a page that is read Linux maps others of its cache, as far away as its largest pages


def release(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Take the pages under bytes [begin, end) of a file mapped read-only out of resident memory.

    Reading them again is safe. Windows takes pages of mapped files by itself when somebody needs memory. Pages that lie
    before these go, too: where they had been released already, the first that was read here brought some of them back.
    """
    begin = max(begin - NEIGHBOUR_BYTES, 0)
    begin -= begin % mmap.PAGESIZE
    if sys.platform != "win32" and begin < end and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def will_read(file: IO[bytes], begin: int, num_bytes: int) -> None:
    """Have the disk fetch bytes of an open file meanwhile; macOS and Windows look ahead on their own."""
    if sys.platform == "linux" and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), begin, num_bytes, os.POSIX_FADV_WILLNEED)


def can_forget() -> bool:
    """Whether `forget` does anything here: macOS and Windows let no program drop files from their caches."""
    return sys.platform == "linux" and hasattr(os, "posix_fadvise")


def forget(file: IO[bytes]) -> None:
    """Drop an open file from the page cache, where that can be done."""
    if sys.platform == "linux" and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
