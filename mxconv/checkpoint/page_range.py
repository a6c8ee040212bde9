"""The pages that somebody else mapped from a file: found in /proc, so Linux only."""

import ctypes
import mmap
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class PageRange:
    """Addresses [begin, end) of this process, mapped from a file and never written to."""

    begin: int
    end: int

    def release(self, address: int, num_bytes: int) -> None:
        """Take pages out of resident memory if [address, address + num_bytes) lies in this range.

        Anonymous memory would read back as zeros, hence the check against what /proc says.
        """
        first = address - address % mmap.PAGESIZE
        if self.begin <= first and address + num_bytes <= self.end and hasattr(mmap, "MADV_DONTNEED"):
            libc = ctypes.CDLL(None)
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(address + num_bytes - first), mmap.MADV_DONTNEED)


def mapped_ranges(path: Path) -> list[PageRange]:
    """Where this process has mapped the file; empty on systems without /proc."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    target = str(path.resolve())
    ranges = []
    for line in maps.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        fields = line.split(maxsplit=5)  # begin-end, permissions, offset, device, inode, path
        if len(fields) == 6 and fields[5] == target:
            begin, end = fields[0].split("-")
            ranges.append(PageRange(int(begin, 16), int(end, 16)))
    return ranges
