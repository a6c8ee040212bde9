"""How long a conversion takes on so many nodes: what each resource has to carry, over what it carries a second.

All of it goes on at once, so the slowest resource decides; and one file's hash, which cannot be split, comes last.
"""

from dataclasses import dataclass
from typing import Literal

GB = 1e9
LARGEST_FILE_BYTES = 5e9  # of the package, as `quantize` writes them

Resource = Literal["processors", "network", "store"]


@dataclass(frozen=True)
class CodecWork:
    """Bytes that a codec moves and what it computes, for each byte of the source.

    Args:
        read: of the source: survey, encoding, hash.
        written: of the package; MXFP4 beside a target that stays where it is.
        processor_seconds_per_gigabyte: of one processor, hashing included. Measured: docs/benchmarks.md, "Conversion"
            and "Memory and time of a conversion".
    """

    read: float
    written: float
    processor_seconds_per_gigabyte: float

    @property
    def moved(self) -> float:
        """Read, written, and what was written read once more for its hash."""
        return self.read + 2 * self.written


# 12.5 and 5.3 seconds of processor time for 3.9 GB
PASSES = {"bsfp": CodecWork(3, 12.8 / 16, 3.2), "mxfp4": CodecWork(2, 4.25 / 16, 1.35)}


@dataclass(frozen=True)
class Cluster:
    """Nodes that are all alike, and what they share."""

    num_nodes: int
    processors: int  # of a node
    network_bytes_per_second: float  # of a node, both directions together
    store_bytes_per_second: float  # of the folder or the object store, for all nodes together
    hash_bytes_per_second: float = 1.8 * GB  # of one stream; measured: docs/benchmarks.md


@dataclass(frozen=True)
class ConversionTime:
    """A prediction."""

    seconds: float
    bottleneck: Resource
    seconds_by_resource: dict[Resource, float]
    last_hash_seconds: float


def conversion_time(num_bytes: float, codec: str, cluster: Cluster) -> ConversionTime:
    """Predict.

    Args:
        num_bytes: of the source.
        codec: mxfp4 or bsfp.
        cluster: who does it.
    """
    passes = PASSES[codec]
    moved = num_bytes * passes.moved
    by_resource: dict[Resource, float] = {
        "processors": num_bytes / GB * passes.processor_seconds_per_gigabyte / (cluster.num_nodes * cluster.processors),
        "network": moved / (cluster.num_nodes * cluster.network_bytes_per_second),
        "store": moved / cluster.store_bytes_per_second,
    }
    bottleneck = max(by_resource, key=lambda name: by_resource[name])
    last = min(LARGEST_FILE_BYTES, num_bytes * passes.written) / cluster.hash_bytes_per_second
    return ConversionTime(by_resource[bottleneck] + last, bottleneck, by_resource, last)
