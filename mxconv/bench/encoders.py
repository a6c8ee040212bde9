"""The encoders alone, in memory, by one thread: slice by slice and BSFP with its fit, as a conversion runs them."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U16
from mxconv.bench.rates import seconds_of
from mxconv.bench.samples import spread
from mxconv.codecs.bsfp import histogram, packing
from mxconv.codecs.bsfp.fit import fit_table
from mxconv.codecs.bsfp.histogram import PatternHistogram
from mxconv.codecs.bsfp.packing import PackedBsfp
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import quantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales
from mxconv.conversion.options import Codec
from mxconv.conversion.plan import MAX_SLICE_WEIGHTS
from mxconv.errors import MxconvError
from mxconv.kernels import encoders

SLAB_ROWS, COLUMNS = 1024, 8192
NUM_SLABS = 8  # the matrix is 8192 x 8192: the fit costs the same for a small one
CHECKED_ROWS = 64
SIGMA = 0.02
NUM_SAMPLES = 7

Encoder = Callable[[U16], Iterator[NDArray[Any]]]


def encoder_bytes_per_second(codec: Codec) -> float:
    """Bytes of 16-bit weights a second; what the encoder writes is compared with the NumPy codec's first.

    Raises:
        MxconvError: the bytes differ.
    """
    encode, reference = ENCODERS[codec]
    values = np.random.default_rng(0).standard_normal((SLAB_ROWS, COLUMNS), np.float32) * np.float32(SIGMA)
    patterns = np.tile(BF16.encode(values), (NUM_SLABS, 1))
    check_encoder(codec, encode, reference, patterns[:CHECKED_ROWS])
    samples = [seconds_of(lambda: deque(encode(patterns), maxlen=0)) for _ in range(1 + NUM_SAMPLES)]
    return patterns.nbytes / spread(samples[1:]).median


def check_encoder(codec: str, encode: Encoder, reference: Encoder, patterns: U16) -> None:
    """Raises MxconvError unless both give the same arrays."""
    pairs = zip(encode(patterns), reference(patterns), strict=True)
    if not all(np.array_equal(mine, other) for mine, other in pairs):
        raise MxconvError(
            f"encoder {codec}: other bytes than the NumPy codec's; the same are required. It is not measured; please "
            "report this as a defect."
        )


def _slices(patterns: U16) -> Iterator[U16]:
    step = max(MAX_SLICE_WEIGHTS // patterns.shape[1], 1)
    for start in range(0, len(patterns), step):
        yield patterns[start : start + step]


def _mxfp4(patterns: U16) -> Iterator[NDArray[Any]]:
    for part in _slices(patterns):
        yield from encoders.encode_mxfp4(part, BF16)


def _reference_mxfp4(patterns: U16) -> Iterator[NDArray[Any]]:
    for part in _slices(patterns):
        codes, scales = quantize_mxfp4(BF16.decode(part))
        yield from (pack_nibbles(codes), pack_scales(scales))


def _bsfp(patterns: U16) -> Iterator[NDArray[Any]]:
    counts = PatternHistogram(BF16)
    for part in _slices(patterns):
        encoders.add_to_histogram(counts, part)
    table, first = encoders.fit_table(counts).table, 0
    for part in _slices(patterns):
        shifts = counts.row_shifts[first : first + len(part)] if table.has_row_shifts else None
        yield from _arrays(encoders.encode_bsfp(part, table, shifts))
        first += len(part)


def _reference_bsfp(patterns: U16) -> Iterator[NDArray[Any]]:
    counts = PatternHistogram(BF16)
    for part in _slices(patterns):
        counts.add(part)
    table = fit_table(counts).table
    for part in _slices(patterns):
        shifts = histogram.row_shifts_of(part, BF16) if table.has_row_shifts else None
        yield from _arrays(packing.encode_bsfp(part, table, shifts))


def _arrays(packed: PackedBsfp) -> list[NDArray[Any]]:
    return [array for array in vars(packed).values() if array is not None]


ENCODERS: dict[Codec, tuple[Encoder, Encoder]] = {
    "mxfp4": (_mxfp4, _reference_mxfp4),
    "bsfp": (_bsfp, _reference_bsfp),
}
