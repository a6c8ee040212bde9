"""How long work reports its progress, without knowing who shows it."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the stage, the bytes done so far and the bytes in all; from any thread."""


def silent(stage: str, num_bytes_done: int, num_bytes_total: int) -> None:
    """Shows nothing."""


CALIBRATED_LAYERS = "calibrate layers"  # a stage that is counted in layers
