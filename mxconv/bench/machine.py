"""Which machine measured, with which native kernels and from which sources: what every table of figures begins with."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mxconv
from mxconv.errors import MxconvError
from mxconv.kernels.engine import NUMPY, choose_engine, choose_kernel, native_names
from mxconv.system.processor import cpu_name

if TYPE_CHECKING:
    from mxconv.kernels import _native

DEFAULT_CACHE_BYTES = 64 << 20
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Machine:
    """A processor, how many threads of it were used, and what was compiled from which sources."""

    cpu: str
    threads: int
    compiler: str
    commit: str | None  # of the checkout that mxconv runs from, followed by "+" where files differ; else None

    @property
    def described(self) -> str:
        """A short description, for titles."""
        return f"{self.threads} thread{'' if self.threads == 1 else 's'}, {self.cpu}"


def this_machine(num_threads: int) -> Machine:
    """Describe this machine; it has native kernels."""
    from mxconv.kernels import _native  # here: a GPU is measured without them

    version = _native.compiler()
    return Machine(cpu_name(), num_threads, f"GCC {version}" if version[:1].isdigit() else version, checkout_commit())


def checkout_commit() -> str | None:
    """The commit of the checkout that mxconv runs from, followed by "+" where files differ; None elsewhere."""
    root = Path(mxconv.__file__).resolve().parents[1]
    if not (root / ".git").exists():  # an installed package may lie inside a checkout of something else
        return None
    commit = _git(root, "rev-parse", "HEAD")
    return f"{commit}+" if commit and _git(root, "status", "--porcelain", "--untracked-files=no") else commit


def _git(root: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def last_level_cache_bytes(caches: Path = CACHES) -> int:
    """The size of the largest cache that Linux lists; 64 MiB where it lists none."""
    return listed_cache_bytes(caches) or DEFAULT_CACHE_BYTES


def listed_cache_bytes(caches: Path = CACHES) -> int | None:
    """The size of the largest cache that Linux lists for the first processor; None where it lists none."""
    found = []
    for path in caches.glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdecimal():
            found.append(int(digits) * unit)
    return max(found, default=None)


def implementations(names: list[str] | None = None) -> list[str]:
    """The native implementations to measure. Ask before importing what measures them.

    Args:
        names: `all`, or some; None takes the environment's MXCONV_KERNEL, or else the best.

    Raises:
        MxconvError: the native kernels were not built, or this processor does not run one of that name.
    """
    if not native_names():
        raise MxconvError(
            "native kernels: not built; they are required to measure them. Install a C++17 compiler and install "
            "mxconv again."
        )
    if names and "all" in names:
        return list(native_names())
    chosen = list(dict.fromkeys(map(choose_kernel, names))) if names else [choose_kernel()]
    if NUMPY in chosen:
        raise MxconvError(f"kernels numpy: no native kernels; one of {', '.join(native_names())} is required.")
    return chosen


def native_engine(name: str, num_threads: int | None) -> "_native.Engine":
    """The engine of a native implementation; None takes all processors."""
    engine = choose_engine(name, num_threads)
    assert engine is not None
    return engine
