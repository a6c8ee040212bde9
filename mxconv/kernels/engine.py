"""Which kernels run: the native implementation that this processor runs best, the one asked for, or NumPy.

    engine = choose_engine()                 # MXCONV_KERNEL, or else the best
    engine = choose_engine("avx2", 2)        # a flag goes before the environment

An engine is an implementation with a thread team, shared by everybody who asks for the same. None stands for the
NumPy reference. Where the extension was not built, NumPy runs and a line on stderr says so, once a process.
"""

import os
import sys
from functools import cache

from mxconv.errors import ModelError
from mxconv.system import processor

try:
    from mxconv.kernels import _native
except ImportError as error:  # installed where no compiler was found, or built for another Python
    _LOAD_ERROR: ImportError | None = error
else:
    _LOAD_ERROR = None

NUMPY = "numpy"
MAX_THREADS = 1024


def native_names() -> tuple[str, ...]:
    """The native implementations that this processor runs, best first; none where the extension is missing."""
    return tuple(_native.available()) if _LOAD_ERROR is None else ()


def kernel_names() -> tuple[str, ...]:
    """Every name that `--kernel` takes here, best first."""
    return (*native_names(), NUMPY)


def choose_kernel(flag: str | None = None) -> str:
    """The name of the kernels to use: what the command line asks for, or MXCONV_KERNEL, or the best.

    Raises:
        ModelError: no kernels of that name exist, or this processor lacks their instructions.
    """
    origin, name = ("--kernel", flag) if flag is not None else ("MXCONV_KERNEL", os.environ.get("MXCONV_KERNEL"))
    names = kernel_names()
    if not name and flag is None:
        if _LOAD_ERROR is not None:
            _say_that_numpy_runs()
        return names[0]
    if name not in names:
        raise ModelError(
            f"{origin}: {name!r}; on this processor one of {', '.join(names)} is required. Leave it out for the best."
        )
    return name


def choose_engine(
    kernel: str | None = None, num_threads: int | None = None, is_shared: bool = True
) -> "_native.Engine | None":
    """The engine of these kernels, with 1 to 1024 threads or all processors; None where NumPy is chosen.

    One that is not shared has a team of its own, which may wait for a disk.

    Raises:
        ModelError: no such kernels, or an impossible number of threads.
    """
    name = choose_kernel(kernel)
    if num_threads is None:
        num_threads = usable_processors()
    if not 1 <= num_threads <= MAX_THREADS:
        raise ModelError(f"--threads: {num_threads}; 1 to {MAX_THREADS} is required. Leave it out for all processors.")
    if name == NUMPY:
        return None
    return _shared_engine(name, num_threads) if is_shared else _native.Engine(name, num_threads)


def usable_processors() -> int:
    """How many processors this process may run on, up to 1024."""
    return min(processor.usable_processors(), MAX_THREADS)


@cache
def _shared_engine(name: str, num_threads: int) -> "_native.Engine":
    return _native.Engine(name, num_threads)


@cache
def _say_that_numpy_runs() -> None:
    print(
        f"mxconv: the native kernels are missing ({_LOAD_ERROR}); running on NumPy, slowly. "
        "Install again with a C++ compiler.",
        file=sys.stderr,
    )
