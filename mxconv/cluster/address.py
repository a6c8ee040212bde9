"""What `--workers` asks for: threads, or a Ray cluster."""

import re
from dataclasses import dataclass

from mxconv.errors import MxconvError

WORKERS = re.compile(r"ray(?::(?P<address>auto|(?:ray://)?[\w.\-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}))?")


@dataclass(frozen=True)
class ClusterAddress:
    """A cluster.

    Args:
        address: `auto` (the one of this machine) or HOST:PORT of its head; None starts one on this machine alone.
    """

    address: str | None = None


def parse_workers(text: str) -> ClusterAddress | None:
    """`threads` gives None, `ray` and `ray:ADDRESS` a cluster.

    Raises:
        MxconvError: it is none of these.
    """
    if text == "threads":
        return None
    found = WORKERS.fullmatch(text)
    if found is None or (found["address"] or "").startswith("ray://"):
        raise MxconvError(
            f"--workers {text}: threads, ray, ray:auto or ray:HOST:PORT is required. HOST:PORT is what `ray start` "
            "prints for other nodes."
        )
    return ClusterAddress(found["address"])
