"""Which machine measured: what every table of figures begins with."""

from dataclasses import dataclass
from pathlib import Path

from mxconv.bench.checkout import checkout_commit
from mxconv.kernels import _native
from mxconv.system.processor import cpu_name

DEFAULT_CACHE_BYTES = 64 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Machine:
    """A processor, how many threads of it were used, and what was compiled from which sources."""

    cpu: str
    threads: int
    compiler: str
    commit: str | None  # of the checkout that mxconv runs from, "+" behind it where files differ; None elsewhere

    @property
    def described(self) -> str:
        """In a few words, as pictures have it."""
        return f"{self.threads} thread{'' if self.threads == 1 else 's'}, {self.cpu}"


def this_machine(num_threads: int) -> Machine:
    version = _native.compiler()
    return Machine(cpu_name(), num_threads, f"GCC {version}" if version[:1].isdigit() else version, checkout_commit())


def last_level_cache_bytes(caches: Path = CACHES) -> int:
    """The size of the largest cache that Linux lists; 64 MiB where it lists none."""
    found = []
    for path in caches.glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdecimal():
            found.append(int(digits) * unit)
    return max(found, default=DEFAULT_CACHE_BYTES)
