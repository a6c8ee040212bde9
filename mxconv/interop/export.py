"""What every exporter returns."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Export:
    """A finished export.

    Args:
        format: as `mxconv export --to` names it.
        files: the files written; of a folder, names relative to it.
        num_bytes: of all of them.
        num_tensors: in all of them.
        seconds: taken.
        notes: what a user should know, one sentence each: tensors that the format cannot hold at 4 bits, and why.
    """

    format: str
    files: list[str]
    num_bytes: int
    num_tensors: int
    seconds: float
    notes: tuple[str, ...] = ()
