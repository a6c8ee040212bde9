"""What is said of a model that has an MTP module of its own."""

from collections.abc import Callable, Iterable

from mxconv.arch.config import ModelConfig
from mxconv.errors import MxconvError


def mtp_note(describe: Callable[[], ModelConfig], tensors: Iterable[str]) -> str | None:
    """One line where tensors are of such a module; None elsewhere, and of families that mxconv does not run.

    Args:
        describe: reads the description, or raises MxconvError.
        tensors: the names of all.
    """
    try:
        config = describe()
    except MxconvError:
        return None
    if config.mtp is None:
        return None
    own = [config.own_name(name) for name in tensors]
    num_tensors = sum(name is not None and config.mtp.has(name) for name in own)
    if not num_tensors:
        return None
    return f"MTP layer: {num_tensors} tensors under {', '.join(config.mtp.modules)} draft for it with --draft mtp."
