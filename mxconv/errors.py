"""The exceptions that mxconv raises for anything a user, a file or a network can cause.

Every message reads `<file or tensor>: <what was found>; <what is required>. <what to do>`.
The command line prints the message alone and exits with 1; `MXCONV_DEBUG=1` adds the traceback.
"""


def install_line(extra: str) -> str:
    """Return the sentence that says how an extra of mxconv is installed."""
    return f"Run: pip install '.[{extra}]' in mxconv's folder, or pip install 'FILE[{extra}]' with its wheel."


class MxconvError(Exception):
    """Base of all errors that are not a defect of mxconv itself."""


class CodecError(MxconvError):
    """An array cannot be encoded or decoded: wrong shape, dtype or value."""


class CheckpointError(MxconvError):
    """A source checkpoint is missing, malformed, damaged or of an unsupported kind."""


class PackageError(MxconvError):
    """A package is missing, malformed, damaged, or would be overwritten."""


class DifferentPackageError(PackageError):
    """What a source was converted to is not the package of the recipe."""


class ModelError(MxconvError):
    """A model configuration, tokenizer or generation request cannot be served."""


class PoolFull(ModelError):  # noqa: N818  # a state, which passes
    """A pool has no more pages for keys and values; nothing has changed, and other sequences can go on."""
