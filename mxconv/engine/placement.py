"""A run in less memory than its weights take: what drafts read stays, planes that the target alone reads are streamed.

    resident   4-bit codes, scales, lists of escapes, norms and biases, all weights of drafts, the KV cache
    streamed   the target's planes, residuals of BSFP or 16-bit matrices: read in the order of a pass and ahead of it
    looked up  embeddings, of which a pass reads a few rows from the file

What memory is left keeps the first layers' planes, as many as fit; the others go through two buffers of a layer. Where
all fit, embeddings stay too.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import pow
from pathlib import Path
from typing import Literal

import numpy as np

from mxconv.checkpoint.tensor import mapped_files
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE, KVPool
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import WeightedInputs, WeightedMixture
from mxconv.engine.tree import MOST_ROWS
from mxconv.engine.weights import DeferredMatrix, ScreenedHead
from mxconv.errors import ModelError
from mxconv.kernels.matrix import Matrix
from mxconv.system.processor import anonymous_bytes, available_bytes

try:
    from mxconv.engine.native_decoder import NativeDecoder
    from mxconv.kernels import _native
    from mxconv.kernels.native_matrix import NativeMatrix, file_errors
except ImportError:  # without the extension nothing is streamed
    pass

MemoryLimit = int | Literal["auto"]
NUM_BUFFERS = 2
PASS_BYTES = 80_000_000  # of activations and the program's own pages
CACHED_TOKENS = 1024  # for whose keys and values room is left
AUTO_SHARE = 15 / 16  # of the memory that is available


def memory_limit(memory: MemoryLimit) -> int:
    """Return the bytes that a process may take: those given, or what is available to it now, less a margin."""
    if memory == "auto":
        return int((available_bytes() + anonymous_bytes()) * AUTO_SHARE)
    return memory


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of a run."""

    program: int  # what the process takes beside its weights
    resident: int  # codes, scales, lists of escapes, matrices of drafts, and tables where all planes are kept
    cache: int  # keys and values of as many tokens as room is left for
    kept: int  # planes of the target that stay in memory
    read: int  # planes that every pass reads
    experts: int  # planes of experts that are not in memory either
    chosen: float  # share of a layer's experts that one row chooses
    num_kept: int  # stages and layers of experts that are `kept`, and tables at last

    def read_by(self, num_rows: float) -> float:
        """Return the bytes that a pass reads, where rows choose their experts apart from each other."""
        return self.read + self.experts * (1 - pow(1 - self.chosen, num_rows))


class Placement:
    """The weights of a target that was loaded, with its drafts, from files that are mapped still."""

    def __init__(
        self,
        root: Path,
        target: Decoder,
        drafts: Sequence[Decoder],
        made: "list[_native.Matrix]",
        limit: int,
        shares_head: bool = False,
    ) -> None:
        """Plan where weights lie, without reading them.

        Args:
            root: of the package, for messages.
            target: whose planes are streamed.
            drafts: the decoders of the levels below.
            made: the matrices of all levels.
            limit: bytes that the process may take.
            shares_head: whether drafts that read hidden states may multiply by the target's head, which then stays.

        Raises:
            PackageError: a file cannot be opened.
            ModelError: the limit is too small.
        """
        self._passing = [each for each in (target, *drafts) if each.output is target.output]
        others = {id(m) for draft in drafts if draft not in self._passing for m in _matrices(draft)}

        def handles(matrices: Iterable[Matrix | None]) -> "list[_native.Matrix]":
            return [_handle(matrix) for matrix in matrices if matrix is not None and id(matrix) not in others]

        layers, experts = ([handles(of(layer)) for layer in target.layers] for of in (_matrices_of, _experts_of))
        inputs = target.layer_inputs
        own_table = inputs.table if isinstance(inputs, WeightedInputs) else None
        tables = handles((target.embedding, target.position_embedding, own_table))
        heads = handles([] if shares_head else [target.head])
        files = []
        for file in mapped_files():
            files.append((str(file.path), whole := file.window(0, file.num_bytes)))
            file.release(whole)  # what was read of it meanwhile
        with file_errors():
            self._reader = _native.PlaneReader(files, layers, heads[0] if heads else None, experts, tables, made)
        self.plan = self._planned(root, target, drafts, limit)

    def _planned(self, root: Path, target: Decoder, drafts: Sequence[Decoder], limit: int) -> MemoryPlan:
        (*sizes, tables), num_stages = self._reader.stage_bytes, self._reader.num_stages
        logits = MOST_ROWS * target.config.vocab_size * np.dtype(np.float32).itemsize
        program, resident = anonymous_bytes() + PASS_BYTES + logits, self._reader.resident_bytes
        configs = {id(decoder.config): decoder for decoder in (target, *drafts)}
        pages = (KVPool(each.config, dtype=each.kv_dtype).page_bytes for each in configs.values())
        cache = sum(pages) * CACHED_TOKENS // PAGE
        there = program + resident + cache
        num_kept = num_that_fit(sizes, num_stages, limit - there)
        if num_kept is None:
            raise ModelError(
                f"{root}: its 4-bit codes, scales and cache, with two layers that are read, take "
                f"{(there + buffer_bytes(sizes, num_stages, 0)) / 1e9:.2f} GB; --memory allows {limit / 1e9:.2f} GB. "
                "Give more, or leave out drafts with --levels."
            )
        kept = sum(sizes[:num_kept])
        if num_kept == len(sizes) and there + kept + tables <= limit:
            num_kept, resident = num_kept + 1, resident + tables
        read, experts = sum(sizes[num_kept:num_stages]), sum(sizes[max(num_kept, num_stages) :])
        routings = [each.mlp.parts.routing for each in target.layers if isinstance(each.mlp, WeightedMixture)]
        chosen = max((routing.num_chosen / routing.num_experts for routing in routings), default=0.0)
        return MemoryPlan(program, resident, cache, kept, read, experts, chosen, num_kept)

    def measured_rate(self) -> float:
        """Return the bytes a second that the disk gives of the planes of a layer, before `start`."""
        with file_errors():
            return self._reader.measure()

    def start(self) -> None:
        """Read what stays in memory, and from now on the other planes as passes go.

        Raises:
            PackageError: a file has changed, or cannot be read.
        """
        with file_errors():
            self._reader.start(self.plan.num_kept, NUM_BUFFERS)
        for decoder in self._passing if self.plan.read or self.plan.experts else ():
            assert isinstance(decoder, NativeDecoder), "made of native matrices"
            decoder.read_ahead(self._reader)


def num_that_fit(sizes: Sequence[int], num_stages: int, room: int) -> int | None:
    """Return how many of the first stages, then of the layers' experts, can stay in memory beside buffers for others.

    None: there is no room for buffers.
    """
    fit = (n for n in range(len(sizes) + 1) if sum(sizes[:n]) + buffer_bytes(sizes, num_stages, n) <= room)
    return max(fit, default=None)


def buffer_bytes(sizes: Sequence[int], num_stages: int, num_kept: int) -> int:
    """Return the bytes that stages which are not kept are read into, and the experts of a layer."""
    stages, experts = sizes[num_kept:num_stages], sizes[max(num_kept, num_stages) :]
    return NUM_BUFFERS * max(stages, default=0) + max(experts, default=0)


def _matrices_of(layer: Layer) -> Iterator[Matrix]:
    for part in (layer.mixer, layer.mlp, layer.layer_input):
        yield from part.matrices if part is not None else ()


def _experts_of(layer: Layer) -> Iterator[Matrix]:
    if isinstance(layer.mlp, WeightedMixture):
        for number in range(layer.mlp.parts.routing.num_experts):
            yield from layer.mlp.experts.matrices(number)


def _matrices(decoder: Decoder) -> Iterator[Matrix]:
    for layer in decoder.layers:
        yield from (*_matrices_of(layer), *_experts_of(layer))
    yield decoder.head.head if isinstance(decoder.head, ScreenedHead) else decoder.head


def _handle(matrix: Matrix) -> "_native.Matrix":
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    return made.handle
