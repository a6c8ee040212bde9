"""From stored tensors to the weights of a model: 16 bits of a file, 4 bits of a package, experts one by one.

Weights stay in the memory-mapped files, and what a package's own levels share is made once, when it is first used.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeVar, cast

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file
from mxconv.arch.whole_model import HeldTensor, faults, fitted, is_described
from mxconv.arrays import F32, U8, U16
from mxconv.checkpoint.regular_file import read_json_object
from mxconv.checkpoint.stacked import CarriedTensor, StackedExperts, carried_tensors, stacked_experts
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.float16 import BF16, FORMATS
from mxconv.codecs.mxfp4 import NonFiniteError
from mxconv.engine.matrices import Matrices
from mxconv.engine.weights import DeferredMatrix, ExpertStack, ModelWeights, ScreenedHead
from mxconv.errors import CheckpointError, MxconvError, PackageError
from mxconv.kernels.encoders import encode_mxfp4
from mxconv.kernels.matrix import Matrix
from mxconv.package.head_screen import own_candidates, read_head_screen
from mxconv.package.level_record import SCREEN_FILE, LevelRecord
from mxconv.package.manifest import Manifest, TensorRecord
from mxconv.package.package import Package, open_referenced
from mxconv.package.stored import StoredMxfp4

Named = TypeVar("Named")
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NUMPY_MATRICES = Matrices()


class OwnWeights:
    """The weights of the model that a package holds, exact and in 4 bits, made when they are first used.

    `stack` closes a source that the package references.
    """

    def __init__(self, package: Package, make: Matrices, stack: ExitStack) -> None:
        self.package = package
        self._make = make
        self._stack = stack
        self._in_four_bits: ModelWeights | None = None
        self._tensors: Mapping[str, SourceTensor] = {}  # of a source that the package references

    @cached_property
    def config(self) -> ModelConfig:
        """The description of these levels."""
        return package_config(self.package)

    @cached_property
    def sixteen_bits(self) -> ModelWeights:
        """The weights of the package's target."""
        return self._exact(self.package.manifest.tensors)

    def four_bits(self, level: str, with_target: bool) -> ModelWeights:
        """The 4-bit matrices of a level, with the target's own embedding, vectors and whatever else has no 4 bits.

        Where no level needs all of the target's weights, the others of them are neither opened nor rebuilt.

        Raises:
            MxconvError: the target's tensors cannot be opened.
        """
        if self._in_four_bits is None:
            exact = self.sixteen_bits if with_target else self._kept(level)
            config = self.config
            drafts = by_own_names(four_bit_matrices(self.package, self._make, self._heads), config)
            if config.tie_word_embeddings and config.embedding in drafts:  # the quantized output head
                drafts.setdefault(head_tensor(config), drafts[config.embedding])
            for name in config.looked_up:  # stay exact
                drafts.pop(name, None)
            stacks = by_own_names(four_bit_stacks(self.package, self._make), config)
            self._in_four_bits = replace(
                exact, matrices={**exact.matrices, **drafts}, stacks={**exact.stacks, **stacks}
            )
        return self._in_four_bits

    def release(self) -> None:
        """Take all weights out of resident memory; what is read again comes back from its file."""
        for tensor in (*self.package.arrays.values(), *self._tensors.values()):
            tensor.release()

    @cached_property
    def head(self) -> Matrix:
        """The target's output head alone."""
        heads = [record for record in self.package.manifest.tensors if record.name in self._heads]
        return self._exact(heads).matrices[head_tensor(self.config)]

    def screened(self, weights: ModelWeights, record: LevelRecord, head: Matrix) -> ModelWeights:
        """The weights of a 4-bit level, whose likeliest tokens have the logits of the target's own head.

        The level's screen says which these are, or its head in 4 bits.

        Raises:
            PackageError: the screen is damaged.
        """
        if record.screen is not None:
            label = f"{self.package.root / SCREEN_FILE}, of level {record.name}"
            screen = read_head_screen(self.package.arrays, record.screen, head.shape, label)
            projection, scores = self._make.dense(screen.projection, BF16), self._make.mxfp4_draft(screen.scores)
            made = ScreenedHead(projection, scores, head, screen.num_candidates)
        elif num_candidates := self._own_candidates:
            made = ScreenedHead(None, self._head_in_four_bits(weights), head, num_candidates)
        else:
            return weights
        return replace(weights, matrices={**weights.matrices, head_tensor(self.config): made})

    @cached_property
    def _own_candidates(self) -> int:
        return 0 if has_exact_head(self.package) else own_candidates(self.package.manifest.tensors, self._heads)

    def _head_in_four_bits(self, weights: ModelWeights) -> Matrix:
        """What scores tokens: the level's own head or, where that has 8 bits, MXFP4 of the target's."""
        record = next(r for r in self.package.manifest.tensors if r.name in self._heads and r.codec != "keep")
        if record.codec != "mxint8":
            return weights.matrices[head_tensor(self.config)]
        tensor = (self._tensors or self.package.arrays)[record.name]
        patterns = self._make.pages.put(cast(U16, tensor.array()))  # the head's own copy
        try:
            codes, scales = encode_mxfp4(patterns, FORMATS[tensor.dtype])
        except NonFiniteError as error:
            raise PackageError(
                f"{self.package.root}: tensor {record.name}: {error} Check the package: mxconv verify."
            ) from error
        rows, columns = record.shape
        return self._make.mxfp4_draft(StoredMxfp4((rows, columns), codes, scales))

    @cached_property
    def _heads(self) -> frozenset[str]:
        """Names of the tensors that are the output head: its own, or the embedding that it is tied to."""
        config = self.config
        own = {head_tensor(config), config.embedding} if config.tie_word_embeddings else {head_tensor(config)}
        return frozenset(r.name for r in self.package.manifest.tensors if config.own_name(r.name) in own)

    def _kept(self, level: str) -> ModelWeights:
        """The exact weights that a 4-bit level needs."""
        config, records = self.config, self.package.manifest.tensors
        exact_heads = self._heads if has_exact_head(self.package) else ()
        needed = [
            r
            for r in records
            if r.codec == "keep" or config.own_name(r.name) in config.looked_up or r.name in exact_heads
        ]
        try:
            return self._exact(needed)
        except MxconvError as error:
            if self.package.has_target:
                raise
            raise PackageError(
                f"{error} Level {level} needs it too: its embedding, its norms and other tensors that are "
                "not in 4 bits are there alone."
            ) from error

    def _exact(self, records: Sequence[TensorRecord]) -> ModelWeights:
        """Some of the 16-bit weights: dense, or rebuilt from BSFP as they are used."""
        found: Mapping[str, SourceTensor] = self.package.arrays
        if not self.package.has_target:
            found = self._tensors = self._stack.enter_context(open_referenced(self.package)).tensors
        tensors = {r.name: found[r.name] for r in records if r.name in found}
        config = self.config
        weights = dense_weights(tensors, config, self._make)
        made = dict(weights.matrices)
        for record in records:
            own = config.own_name(record.name)
            if own is None:
                continue
            if record.scaled is None and (record.codec != "bsfp" or record.stack is not None):
                continue
            make = partial(self._rebuilt, record, found)
            # passes may never read those of an expert, nor those of an MTP module
            may_wait = config.is_expert(own) or (config.mtp is not None and config.mtp.has(own))
            rows, columns = record.shape
            made[own] = DeferredMatrix((rows, columns), make) if may_wait else make()
        in_stacks = (r for r in self.package.manifest.tensors if r.carried is not None or r.codec == "bsfp")
        stacks = by_own_names(_stacks(in_stacks, self._expert), config)
        return tied(replace(weights, matrices=made, stacks={**weights.stacks, **stacks}), config)

    def _expert(self, record: TensorRecord, expert: int) -> Matrix:
        return exact_matrix(self.package, record, self._make, expert)

    def _rebuilt(self, record: TensorRecord, found: Mapping[str, SourceTensor]) -> Matrix:
        if record.scaled is None:
            return exact_matrix(self.package, record, self._make)
        return self._make.fp8(self.package.fp8(record, found))


def package_config(package: Package) -> ModelConfig:
    """Return the description of a package's model, fitted to its tensors. Raises MxconvError where mxconv runs none."""
    digests = {record.name: record.sha256 for record in package.manifest.tensors}
    config = describe_file(package.root / "config.json")
    return fitted(config, recorded_tensors(package.manifest), lambda one, other: digests[one] == digests[other])


def recorded_tensors(manifest: Manifest) -> dict[str, HeldTensor]:
    """Return what a manifest says of its tensors, by name."""
    return {
        record.name: HeldTensor(tuple(record.shape), "BF16" if record.scaled is not None else record.dtype)
        for record in manifest.tensors
    }


def described_package(package: Package) -> ModelConfig | None:
    """Return the same; None where the package holds no whole model of a family that mxconv runs."""
    try:
        values = read_json_object(package.root / "config.json", unique_keys=False)
    except CheckpointError:  # none, or damaged, which its hash shows
        return None
    return package_config(package) if is_described(values) else None


def package_faults(package: Package) -> Iterator[tuple[str, str]]:
    """Yield the name of each tensor that a package lacks of the model that its config.json describes, and why."""
    if (config := described_package(package)) is not None:
        yield from faults(config, recorded_tensors(package.manifest))


def dense_weights(
    tensors: Mapping[str, SourceTensor], config: ModelConfig | None = None, make: Matrices = NUMPY_MATRICES
) -> ModelWeights:
    """16-bit matrices and stacks of experts as they lie in the file; vectors and the taps of convolutions as float32.

    Other tensors are no weights of these models.
    """
    matrices: dict[str, Matrix] = {}
    vectors: dict[str, F32] = {}
    arrays: dict[str, F32] = {}
    for stored, tensor in tensors.items():
        name = config.own_name(stored) if config else stored
        if name is None:  # of another tower
            continue
        float_format = FORMATS.get(tensor.dtype)
        if len(tensor.shape) == 2 and float_format:
            is_multiplied = config is None or config.tie_word_embeddings or name != config.embedding
            place = make.dense if is_multiplied else make.table
            matrices[name] = place(cast(U16, tensor.array()), float_format)
        elif len(tensor.shape) == 1 or (len(tensor.shape) == 3 and tensor.shape[1] == 1):
            kept = vectors if len(tensor.shape) == 1 else arrays
            if float_format:
                kept[name] = float_format.decode(cast(U16, tensor.array()))
            elif tensor.dtype == "F32":
                kept[name] = cast(F32, tensor.array())
    stacks = by_own_names(_dense_stacks(tensors, make), config)
    return tied(ModelWeights(matrices, vectors, stacks, arrays), config)


def four_bit_matrices(package: Package, make: Matrices, heads: Container[str]) -> dict[str, Matrix]:
    """The matrices of a package's 4-bit level, by the names of the tensors; its output head may have 8 bits.

    Output heads, the tensors of these names, are missing where the level multiplies their exact weights.
    """
    matrices = [record for record in package.manifest.tensors if record.codec != "keep" and record.stack is None]
    is_exact = has_exact_head(package)
    made: dict[str, Matrix] = {}
    for record in matrices:
        if not (is_exact and record.name in heads):
            (rows, columns), draft = record.shape, partial(_draft, package, record, make)
            # a head of 8 bits is not read where the target's chooses
            made[record.name] = DeferredMatrix((rows, columns), draft) if record.codec == "mxint8" else draft()
    return made


def _draft(package: Package, record: TensorRecord, make: Matrices) -> Matrix:
    return make.draft(package.draft(record))


def exact_matrix(package: Package, record: TensorRecord, make: Matrices, expert: int | None = None) -> Matrix:
    """The target's weights of a tensor that a package has in 4 bits too, or of one expert of it."""
    if record.carried is not None:
        return make.mxfp4_target(package.mxfp4(record, expert))
    if record.codec == "bsfp":
        which = "" if expert is None else f", expert {expert}"
        return make.bsfp(package.bsfp(record, expert), f"{package.root}: tensor {record.name}{which}")
    tensor = package.arrays[record.name]
    return make.dense(cast(U16, tensor.array()), FORMATS[tensor.dtype])


def four_bit_stacks(package: Package, make: Matrices) -> dict[str, ExpertStack]:
    """The experts of a package in 4 bits, by the names of the tensors."""
    return _stacks(package.manifest.tensors, lambda record, expert: make.draft(package.draft(record, expert)))


def by_own_names(tensors: Mapping[str, Named], config: ModelConfig | None) -> dict[str, Named]:
    """By the decoder's own names, without those of other towers."""
    named = {config.own_name(stored) if config else stored: tensor for stored, tensor in tensors.items()}
    return {name: tensor for name, tensor in named.items() if name is not None}


def has_exact_head(package: Package) -> bool:
    """Whether the 4-bit level's output head is the target's, of which both read all bits."""
    return package.manifest.options.lm_head == "exact"


def tied(weights: ModelWeights, config: ModelConfig | None) -> ModelWeights:
    """With tied embeddings the output head is the embedding matrix."""
    matrices = weights.matrices
    if config is None or not config.tie_word_embeddings or config.embedding not in matrices:
        return weights
    return replace(weights, matrices={head_tensor(config): matrices[config.embedding], **matrices})


def head_tensor(config: ModelConfig) -> str:
    """The name of the output head's matrix."""
    return f"{config.head}.weight"


def _dense_stacks(tensors: Mapping[str, SourceTensor], make: Matrices) -> dict[str, ExpertStack]:
    """The experts of a checkpoint as they lie in its files, by the names of the tensors.

    Matrices that are stored turned are views; native kernels, which read rows, get a copy of those that rows choose.
    """
    found = {
        name: _stack(experts, partial(_dense, tensors[name], cast(U16, tensors[name].array()), experts, make))
        for name, experts in stacked_experts(tensors).items()
        if tensors[name].dtype in FORMATS
    }
    for name, carried in carried_tensors(tensors).items():
        if carried.part == "codes":
            found[carried.of] = _stack(carried.stack, partial(_repacked, tensors[name], tensors[carried.partner], make))
    return found


def _dense(tensor: SourceTensor, patterns: U16, experts: StackedExperts, make: Matrices, expert: int) -> Matrix:
    """A view of one expert; `patterns` is the whole tensor, mapped while its file was open."""
    return make.dense(experts.matrix(patterns[expert]), FORMATS[tensor.dtype])


def _repacked(blocks: SourceTensor, scales: SourceTensor, make: Matrices, expert: int) -> Matrix:
    """MXFP4 as a checkpoint has it: an expert becomes tiles, in memory, when it is made."""
    codes, exponents = CarriedTensor("", "codes", blocks.shape), CarriedTensor("", "scales", scales.shape)
    first, second = (cast(U8, tensor.array())[expert] for tensor in (blocks, scales))
    stored = StoredMxfp4(codes.stack.matrix_shape, codes.to_tiles(first), exponents.to_tiles(second))
    return make.mxfp4_target(stored)


def _stacks(records: Iterable[TensorRecord], matrix: Callable[[TensorRecord, int], Matrix]) -> dict[str, ExpertStack]:
    return {r.stem: _stack(r.stack, partial(matrix, r)) for r in records if r.stack is not None}


def _stack(experts: StackedExperts, make: Callable[[int], Matrix]) -> ExpertStack:
    return ExpertStack((experts.num_experts, *experts.matrix_shape), make)
