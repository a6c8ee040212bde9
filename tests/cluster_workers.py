"""Conversions by a cluster, and its processes."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from mxconv.checkpoint.source import open_checkpoint
from mxconv.cluster.executor import RayExecutor
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert

Make = Callable[[], RayExecutor]


def by_ray(make: Make, source: Path, package: Path, **options: Any) -> None:
    """Convert as `mxconv quantize --workers ray` does."""
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(**options), executor=make)


def workers() -> list[tuple[int, str]]:
    """Processes of the cluster that do pieces, and what they do."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append((each.pid, (each.cmdline() or [""])[0]))
    names = ("ray::IDLE", "ray::Encode", "ray::Survey", "ray::hash")
    return [(pid, title) for pid, title in found if title.startswith(names)]
