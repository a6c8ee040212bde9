"""A run in less memory than its weights take: what drafts read stays, planes that the target alone reads are streamed.

    resident   4-bit codes, scales, lists of escapes, norms and biases, all weights of drafts, the KV cache
    streamed   the target's planes, residuals of BSFP or 16-bit matrices: read in the order of a pass and ahead of it
    looked up  embeddings, of which a pass reads a few rows from the file

What memory is left keeps the first layers' planes, as many as fit; the others go through two buffers of a layer.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, cast

from mxconv.checkpoint.tensor import MappedBytes
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import PAGE, KVPool
from mxconv.engine.layer import Layer
from mxconv.engine.mlp import WeightedInputs, WeightedMixture
from mxconv.engine.stored_weights import OwnWeights
from mxconv.engine.weights import DeferredMatrix, ScreenedHead
from mxconv.errors import ModelError, PackageError
from mxconv.kernels.matrix import Matrix
from mxconv.kernels.weight_pages import large_pages
from mxconv.system.processor import anonymous_bytes, available_bytes, forget

if TYPE_CHECKING:
    from mxconv.engine.native_decoder import NativeDecoder

try:
    from mxconv.kernels import _native
    from mxconv.kernels.native_matrix import NativeMatrix
except ImportError:  # without the extension nothing is streamed
    pass

MemoryLimit = int | Literal["auto"]
NUM_BUFFERS = 2
PASS_BYTES = 100_000_000  # of activations, logits and what a run allocates beside its weights
CACHED_TOKENS = 2048  # for whose keys and values room is left
AUTO_SHARE = 15 / 16  # of the memory that is available


def memory_limit(memory: MemoryLimit) -> int:
    """Return the bytes that a process may take: those given, or what is available to it now, less a margin."""
    if memory == "auto":
        return int((available_bytes() + anonymous_bytes()) * AUTO_SHARE)
    return memory


class Placement:
    """The planes of a target that was loaded, with its drafts, from files that stay mapped."""

    def __init__(self, own: OwnWeights, target: Decoder, drafts: Sequence[Decoder]) -> None:
        """`drafts` are the decoders of the levels below."""
        self._own, self._target, self._drafts = own, cast("NativeDecoder", target), drafts
        drafted = {id(matrix) for draft in drafts if not _is_view(draft, target) for matrix in _matrices(draft)}
        layers = [[m for m in matrices_of(layer) if id(m) not in drafted] for layer in target.layers]
        experts = [[_handle(m) for m in experts_of(layer) if id(m) not in drafted] for layer in target.layers]
        shared = [matrix for matrix in _matrices(target) if id(matrix) in drafted]
        tables = [table for table in (target.embedding, target.position_embedding) if table is not None]
        if isinstance(target.layer_inputs, WeightedInputs):
            shared.append(target.layer_inputs.projection.matrix)
            tables.append(target.layer_inputs.table)
        head = None if id(target.head) in drafted else _handle(target.head)
        files = [(str(file.path), file.window(0, file.num_bytes)) for file in _mapped_files(own)]
        stages = [[_handle(matrix) for matrix in stage] for stage in (shared, *layers)]
        self._reader = _native.PlaneReader(files, stages, head, experts, list(map(_handle, tables)))

    def start(self, limit: int) -> None:
        """Keep as many planes as fit into memory beside what is there already, and read the others from now on.

        Raises:
            PackageError: a file has changed, or cannot be read.
            ModelError: the limit is too small.
        """
        forget_files(self._own)
        there = anonymous_bytes() + self._cache_bytes() + PASS_BYTES
        stages, experts = self._reader.stage_bytes, self._reader.expert_bytes
        num_kept = num_that_fit(stages, limit - there - max(experts))
        if num_kept < 1:
            needed = there + stages[0] + NUM_BUFFERS * max(stages[1:]) + max(experts)
            raise ModelError(
                f"{self._own.package.root}: what stays in memory, the cache and two layers that are read take "
                f"{needed / 1e9:.2f} GB; --memory allows {limit / 1e9:.2f} GB. Give more, or leave out drafts."
            )
        most = max(stages[num_kept:], default=0)
        room = limit - there - sum(stages[:num_kept]) - NUM_BUFFERS * most
        num_experts = num_that_fit(experts, room, 1) if num_kept == len(stages) else 0
        kept = large_pages(sum(stages[:num_kept]) + sum(experts[:num_experts]))
        buffers = [large_pages(most) for _ in range(NUM_BUFFERS)] if most else []
        try:
            self._reader.start(num_kept, num_experts, kept, buffers, large_pages(max(experts[num_experts:], default=0)))
        except _native.ReadError as error:
            raise PackageError(str(error)) from error
        reads = num_kept < len(stages) or any(experts[num_experts:])
        for decoder in (self._target, *self._drafts):
            if reads and _is_view(decoder, self._target):
                cast("NativeDecoder", decoder).read_ahead(self._reader)

    def _cache_bytes(self) -> int:
        configs = {id(decoder.config): decoder for decoder in (self._target, *self._drafts)}
        pages = (KVPool(each.config, dtype=each.kv_dtype).page_bytes for each in configs.values())
        return sum(pages) * CACHED_TOKENS // PAGE


def num_that_fit(stages: Sequence[int], room: int, num_buffers: int = NUM_BUFFERS) -> int:
    """Return how many of the first stages can stay in memory beside buffers for the others; 0: not even one can."""
    kept, found = 0, 0
    for number, num_bytes in enumerate(stages, 1):
        kept += num_bytes
        if kept + num_buffers * max(stages[number:], default=0) <= room:
            found = number
    return found


def matrices_of(layer: Layer) -> Iterator[Matrix]:
    """Yield what a layer multiplies by, but for experts."""
    yield from layer.mixer.matrices
    if isinstance(layer.mlp, WeightedMixture):
        mixture = layer.mlp
        yield mixture.router.projection.matrix
        yield from mixture.shared.matrices if mixture.shared else ()
        if mixture.shared_gate is not None:
            yield mixture.shared_gate.matrix
    elif layer.mlp is not None:
        yield from layer.mlp.matrices
    if layer.layer_input is not None:
        yield layer.layer_input.gate.matrix
        yield layer.layer_input.projection.matrix


def experts_of(layer: Layer) -> Iterator[Matrix]:
    """Yield the experts of a layer that has some."""
    if isinstance(layer.mlp, WeightedMixture):
        experts = layer.mlp.experts
        makers = (experts.gate, experts.up, experts.down) if experts.both is None else (experts.both, experts.down)
        for number in range(layer.mlp.parts.routing.num_experts):
            yield from (make(number) for make in makers)


def _matrices(decoder: Decoder) -> Iterator[Matrix]:
    for layer in decoder.layers:
        yield from (*matrices_of(layer), *experts_of(layer))
    yield decoder.head.head if isinstance(decoder.head, ScreenedHead) else decoder.head


def _is_view(draft: Decoder, target: Decoder) -> bool:
    """Whether a draft multiplies by the target's planes in every layer."""
    return draft.output is target.output


def _handle(matrix: Matrix) -> "_native.Matrix":
    made = matrix.matrix if isinstance(matrix, DeferredMatrix) else matrix
    assert isinstance(made, NativeMatrix), "made of native matrices"
    return made.handle


def _mapped_files(own: OwnWeights) -> Iterable[MappedBytes]:
    found = {id(tensor.file): tensor.file for tensor in own.tensors if isinstance(tensor.file, MappedBytes)}
    return found.values()


def forget_files(own: OwnWeights) -> None:
    """Take the pages of files that were read while weights were loaded out of memory."""
    own.release()
    for file in _mapped_files(own):
        with file.path.open("rb") as opened:
            forget(opened)
