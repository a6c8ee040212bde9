"""`mxconv --version`: what a report of a defect needs to say."""

import platform

import typer

from mxconv import __version__


def print_version(wanted: bool) -> None:
    """Print version, kernels, threads and processor, and end.

    Raises:
        ModelError: MXCONV_KERNEL names no kernels of this machine; the version is printed before.
    """
    if not wanted:
        return
    print(f"mxconv {__version__}")
    from mxconv.kernels.engine import choose_kernel, kernel_names, usable_processors
    from mxconv.system.processor import cpu_name

    chosen = choose_kernel()
    others = ", ".join(name for name in kernel_names() if name != chosen)
    num_threads = usable_processors()
    print(f"kernel     {chosen}" + (f" ({others} run here, too)" if others else ""))
    print(f"processor  {cpu_name()}, {num_threads} thread{'' if num_threads == 1 else 's'}")
    print(f"system     {platform.system()} {platform.machine()}, Python {platform.python_version()}")
    raise typer.Exit()
