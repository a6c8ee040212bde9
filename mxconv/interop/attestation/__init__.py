"""Attestations and bills of materials (extra `attest`): who says what about a package."""

from mxconv.errors import MxconvError

__all__ = ["cyclonedx", "model_signing"]

try:
    import cyclonedx
    import model_signing
except ModuleNotFoundError as error:
    raise MxconvError(
        f"attestations: {(error.name or '').partition('.')[0]} is not installed; it belongs to the extra `attest`. "
        "Run: pip install 'mxconv[attest]'"
    ) from error
