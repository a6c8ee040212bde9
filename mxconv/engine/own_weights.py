"""The weights of the model that a package holds, exact and in 4 bits; they stay in the memory-mapped files."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file
from mxconv.arrays import I64
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.codecs.float16 import BF16, FORMATS
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import (
    dense_weights,
    exact_matrix,
    exact_stacks,
    four_bit_matrices,
    four_bit_matrix,
    four_bit_stacks,
    has_exact_head,
    head_tensor,
    own_stacks,
    tied,
)
from mxconv.engine.weights import DeferredMatrix, ModelWeights
from mxconv.errors import MxconvError, PackageError
from mxconv.kernels.matrix import Matrix
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package, open_referenced


class OwnWeights:
    """Weights of a package's own levels, made when they are first used.

    Args:
        package: open.
        make: its matrices.
        stack: closes a source that the package references.
    """

    def __init__(self, package: Package, make: Matrices, stack: ExitStack) -> None:
        self.package = package
        self._make = make
        self._stack = stack
        self._in_four_bits: ModelWeights | None = None

    @cached_property
    def config(self) -> ModelConfig:
        """The description of the package's own levels."""
        return describe_file(self.package.root / "config.json")

    @cached_property
    def sixteen_bits(self) -> ModelWeights:
        """The weights of the package's target."""
        return self._exact(self.package.manifest.tensors)

    def four_bits(self, level: str, with_target: bool) -> ModelWeights:
        """The 4-bit matrices, with the target's own embedding, vectors and whatever else has no 4 bits.

        Args:
            level: which needs them, for messages.
            with_target: whether a level needs all of the target's weights anyway. Where none does, the others of them
                are neither opened nor rebuilt.

        Raises:
            MxconvError: the target's tensors cannot be opened.
        """
        if self._in_four_bits is None:
            exact = self.sixteen_bits if with_target else self._kept(level)
            config, found = self.config, four_bit_matrices(self.package, self._make, self._heads)
            drafts = {own: matrix for name, matrix in found.items() if (own := config.own_name(name)) is not None}
            if config.tie_word_embeddings and config.embedding in drafts:  # the quantized output head
                drafts.setdefault(head_tensor(config), drafts[config.embedding])
            for name in config.looked_up:  # stay exact
                drafts.pop(name, None)
            stacks = own_stacks(four_bit_stacks(self.package, self._make), config)
            self._in_four_bits = replace(
                exact, matrices={**exact.matrices, **drafts}, stacks={**exact.stacks, **stacks}
            )
        return self._in_four_bits

    def head_rows(self, whole: Matrix, tokens: I64, in_four_bits: bool) -> Matrix:
        """The rows of an output head that belong to some tokens, copied.

        Args:
            whole: the head of the level.
            tokens: ascending ids.
            in_four_bits: whether the level is the 4-bit one.
        """
        config, records = self.config, [r for r in self.package.manifest.tensors if r.name in self._heads]
        own = next((r for r in records if config.own_name(r.name) == head_tensor(config)), records[0])
        if in_four_bits and own.codec != "keep" and not has_exact_head(self.package):
            return four_bit_matrix(self.package, own, self._make, tokens)
        float_format = FORMATS.get(own.dtype, BF16)  # FP8 stands for BF16 weights
        return self._make.dense(float_format.encode(whole.rows(tokens)), float_format)

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
            found = self._stack.enter_context(open_referenced(self.package)).tensors
        tensors = {r.name: found[r.name] for r in records if r.name in found}
        config = self.config
        weights = dense_weights(tensors, config, self._make)
        made = dict(weights.matrices)
        for record in records:
            own = config.own_name(record.name)
            if own is None:
                continue
            if record.scaled is not None:
                make = partial(self._fp8, record, found)
            elif record.codec == "bsfp" and record.stack is None:
                make = partial(exact_matrix, self.package, record, self._make)
            else:
                continue
            made[own] = DeferredMatrix(_matrix_shape(record), make) if _may_wait(own, config) else make()
        stacks = own_stacks(exact_stacks(self.package, self._make), config)
        return tied(replace(weights, matrices=made, stacks={**weights.stacks, **stacks}), config)

    def _fp8(self, record: TensorRecord, found: Mapping[str, SourceTensor]) -> Matrix:
        return self._make.fp8(self.package.fp8(record, found))


def _may_wait(tensor: str, config: ModelConfig) -> bool:
    """Whether passes may never read a tensor: an expert's, or an MTP module's."""
    return config.is_expert(tensor) or (config.mtp is not None and config.mtp.has(tensor))


def _matrix_shape(record: TensorRecord) -> tuple[int, int]:
    rows, columns = record.shape
    return rows, columns
