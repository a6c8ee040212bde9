"""Attestations (extra `attest`): who says what about a package."""

from mxconv.errors import MxconvError, install_line

try:
    import model_signing  # noqa: F401
except ModuleNotFoundError as error:
    raise MxconvError(
        f"attestations: {(error.name or '').partition('.')[0]} is not installed; it belongs to the extra `attest`. "
        + install_line("attest")
    ) from error
