"""The native kernels, which benchmarks cannot do without. Ask here before importing what measures them."""

from mxconv.errors import MxconvError
from mxconv.kernels.engine import NUMPY, choose_kernel, native_names


def implementations(names: list[str] | None = None) -> list[str]:
    """The native implementations to measure.

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
