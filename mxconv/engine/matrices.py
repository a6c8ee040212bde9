"""Matrices of stored tensors: NumPy's, or native ones around them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mxconv.arch.config import ModelConfig
from mxconv.arrays import U16
from mxconv.codecs.float16 import BF16, FloatFormat
from mxconv.engine.decoder import Decoder
from mxconv.engine.kv_pool import KvDtype
from mxconv.engine.layer import PairedLayers
from mxconv.engine.weights import ModelWeights
from mxconv.kernels.draft_matrix import (
    Activations,
    EightBitMatrix,
    FourBitFloatMatrix,
    FourBitMatrix,
    bsfp_draft_matrix,
    mxfp4_matrix,
    mxint8_matrix,
)
from mxconv.kernels.matrix import BsfpMatrix, DenseMatrix, Matrix
from mxconv.kernels.weight_pages import WeightPages
from mxconv.package.stored import StoredBsfp, StoredDraft, StoredMxfp4, StoredMxint8

if TYPE_CHECKING:
    from mxconv.checkpoint.fp8_matrix import Fp8Matrix
    from mxconv.kernels import _native

try:
    from mxconv.engine.native_decoder import NativeDecoder, NativePairs
    from mxconv.kernels.native_matrix import NativeMatrix, native_bsfp, native_dense, native_draft
except ImportError:  # without the extension there is no engine to use them with
    pass

MAPPED = WeightPages("map")


@dataclass(frozen=True)
class Matrices:
    """Makes matrices, and decoders of them, for one engine."""

    engine: "_native.Engine | None" = None  # which kernels, how many threads; None is NumPy
    activations: Activations = "int8"  # what 4-bit weights are multiplied by
    kv_dtype: KvDtype = "fp32"  # of keys and values in the caches that decoders make
    pages: WeightPages = MAPPED  # where weights that native kernels multiply lie
    made: "list[_native.Matrix] | None" = None  # those that `Placement` reads from their files; None: none
    streams: bool = False  # whether they are of a target whose planes it has passes read

    def dense(self, patterns: U16, float_format: FloatFormat) -> Matrix:
        """16-bit weights, (out_features, in_features)."""
        if self.engine is None or 0 in patterns.shape:  # no model has an empty matrix; its shape will be refused
            return DenseMatrix(patterns, float_format)
        made = self._noted(native_dense(self.engine, DenseMatrix(self.pages.put(patterns), float_format)))
        return replace(made, rebuilt_format=float_format) if self.streams else made

    def table(self, patterns: U16, float_format: FloatFormat) -> Matrix:
        """16-bit weights of which rows are looked up, and which stay in their file."""
        return replace(self, pages=MAPPED, made=None).dense(patterns, float_format)

    def fp8(self, stored: "Fp8Matrix") -> Matrix:
        """The BF16 weights that an FP8 matrix holds, decoded once and for good."""
        return self.dense(stored.patterns(0, stored.codes.shape[0]), BF16)

    def bsfp(self, stored: StoredBsfp, name: str) -> Matrix:
        """The exact weights of a BSFP tensor. `name` is what messages call it.

        Raises:
            PackageError: its escape lists contradict themselves.
        """
        float_format = stored.table.float_format
        reference = BsfpMatrix(stored.shape, float_format, stored.target_rows)
        if self.engine is None:
            return reference
        if stored.rescale_factor != 1.0:
            # its rows are rounded once more after they are rebuilt, which kernels do not do: rebuild it here for good
            return self.dense(stored.target_rows(0, stored.shape[0]), float_format)
        read = "codes", "residual_low", "residual_high", "escape_positions", "escape_high"
        packed = replace(stored.packed, **{each: self.pages.put(getattr(stored.packed, each)) for each in read})
        return self._noted(native_bsfp(self.engine, reference, packed, stored.escape_offsets, stored.table, name))

    def draft(self, stored: StoredDraft) -> Matrix:
        """The weights of a draft in any format of a package."""
        if isinstance(stored, StoredMxint8):
            return self.mxint8_draft(stored)
        return self.mxfp4_draft(stored) if isinstance(stored, StoredMxfp4) else self.bsfp_draft(stored)

    def mxfp4_draft(self, stored: StoredMxfp4) -> Matrix:
        """The 4-bit weights of an MXFP4 tensor."""
        return self._draft(mxfp4_matrix(stored.shape, stored.codes, stored.scales, self.activations))

    def mxfp4_target(self, stored: StoredMxfp4) -> Matrix:
        """MXFP4 weights that are a target's own: activations stay float32, and a row has the same bits among others."""
        return replace(self, activations="fp32").mxfp4_draft(stored)

    def mxint8_draft(self, stored: StoredMxint8) -> Matrix:
        """The 8-bit weights of an MXINT8 tensor; where activations stay float32, as the BF16 weights that they are."""
        if self.activations == "fp32":
            return self.dense(stored.patterns(0, stored.shape[0]), BF16)
        return self._draft(mxint8_matrix(stored.shape, stored.elements.view(np.uint8), stored.scales))

    def bsfp_draft(self, stored: StoredBsfp) -> Matrix:
        """The 4-bit weights of a BSFP tensor."""
        codes, scales, table = stored.packed.codes, stored.packed.scales, stored.table
        made = bsfp_draft_matrix(stored.shape, codes, scales, table, self.activations, stored.rescale_factor)
        return self._draft(made)

    def _draft(self, reference: FourBitMatrix | FourBitFloatMatrix | EightBitMatrix) -> Matrix:
        if self.engine is None:
            return reference
        put = self.pages.put
        arrays: Any = {"codes": put(reference.codes), "stored_scales": put(cast(Any, reference.stored_scales))}
        return self._noted(native_draft(self.engine, replace(reference, **arrays)))

    def _noted(self, matrix: "NativeMatrix") -> "NativeMatrix":
        if self.made is not None:
            self.made.append(matrix.handle)
        return matrix

    def pair_grower(self, paired: PairedLayers) -> "NativePairs | None":
        """What grows trees of layers of matrices that were made here; None where they go pass by pass."""
        embedding, is_sorted = paired.embedding, bool((np.diff(paired.tokens) > 0).all())
        if self.engine is None or not is_sorted or not (isinstance(embedding, NativeMatrix) and embedding.has_16_bits):
            return None
        return NativePairs(paired, self.engine)

    def decoder(self, config: ModelConfig, weights: ModelWeights, name: str) -> Decoder:
        """A decoder of matrices that were made here.

        Raises:
            ModelError: a tensor is missing or has another shape than the configuration says.
        """
        made: Decoder
        if self.engine is None:
            made = Decoder(config, weights, name)
        else:
            made = NativeDecoder(config, weights, name, self.engine)
        made.kv_dtype = self.kv_dtype
        return made
