"""What a run keeps in memory and what each of its rounds reads, before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from mxconv.drafts.kinds import is_look_up, kind_of
from mxconv.drafts.pass_cost import BYTES_PER_WEIGHT, PassCost
from mxconv.engine.kv_pool import PAGE, KvDtype, KVPool
from mxconv.engine.placement import CACHED_TOKENS, NUM_BUFFERS, PASS_BYTES
from mxconv.engine.stored_weights import package_config
from mxconv.errors import ModelError
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.package.stored import tensor_arrays

STREAMED_ARRAYS = ".residual_low", ".residual_high", ".escape_high"
PROGRAM_BYTES = 100_000_000  # before anything is loaded


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of a package's levels.

    Args:
        root: the package, for messages.
        resident: codes, scales, lists of escapes, 16-bit matrices that drafts multiply by too, models that draft.
        cache: keys and values of so many tokens as room is left for.
        streamed: planes that the target alone reads.
        largest: of a layer's planes.
    """

    root: Path
    resident: int
    cache: int
    streamed: int
    largest: int

    @classmethod
    def of(cls, package: Package, levels: Sequence[LevelRecord], kv_dtype: KvDtype = "fp32") -> "MemoryPlan":
        """Return the plan of some levels of a package, its own target first."""
        config, resident, streamed = package_config(package), 0, 0
        has_drafts = any(level.codec in ("mxfp4", "bsfp") for level in levels[1:])
        for record in package.manifest.tensors:
            own = config.own_name(record.name)
            if own is None:
                continue
            whole = prod(record.shape) * BYTES_PER_WEIGHT
            arrays = {array.name: array.num_bytes for array in tensor_arrays(record)} if record.is_quantized else {}
            planes = sum(size for name, size in arrays.items() if name.endswith(STREAMED_ARRAYS))
            if record.codec == "bsfp" or has_drafts:
                resident += sum(arrays.values()) - planes
            if own in config.looked_up:  # rows of it are read where they lie
                streamed += planes
            elif record.is_quantized:
                streamed += planes if record.codec == "bsfp" else whole
            elif has_drafts:
                resident += whole
            else:
                streamed += whole
        return cls(
            package.root,
            resident + sum(_model_bytes(package, level) for level in levels[1:]),
            KVPool(config, dtype=kv_dtype).page_bytes * CACHED_TOKENS // PAGE,
            streamed,
            streamed // max(config.num_hidden_layers, 1),
        )

    def needed(self) -> int:
        """Return the least that the process takes: with no more planes in memory than are read ahead."""
        return PROGRAM_BYTES + self.resident + self.cache + PASS_BYTES + min(self.streamed, NUM_BUFFERS * self.largest)

    def kept(self, limit: int) -> int:
        """Return how many bytes of planes stay in memory."""
        left = limit - self.needed()
        if self.streamed - NUM_BUFFERS * self.largest <= left:
            return self.streamed
        return max(left // max(self.largest, 1) * self.largest, 0)

    def check(self, limit: int) -> None:
        """Raise ModelError where a limit is too small."""
        if limit >= self.needed():
            return
        raise ModelError(
            f"{self.root}: its 4-bit codes, scales and cache take {self.needed() / 1e9:.2f} GB; --memory "
            f"allows {limit / 1e9:.2f} GB. Give more, or leave out drafts with --levels."
        )


def _model_bytes(package: Package, level: LevelRecord) -> int:
    """Bytes of a draft in a folder of its own; of the package's own weights and of look-ups 0."""
    if level.path is None or is_look_up(level):
        return 0
    target = PassCost.of_package(package, package.manifest.levels[0])
    return kind_of(level).cost(level, package.root / level.path, package, target).num_bytes
