"""A conversion against a copy of the same bytes, and the encoders alone.

Copy and conversion take turns. Before a cold sample the source is dropped from the page cache and pending writes are
waited for; before a warm one it is read. A conversion runs in a process of its own, which knows its own peak memory,
and is timed without the start of that process. It flushes what it writes to the disk; `cp` does not, so a flushed copy
is timed too. An encoder runs in memory, by one thread, slice by slice and BSFP with its fit, as a conversion runs it.
"""

import json
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxconv.arrays import U16
from mxconv.bench.rates import seconds_of, spread
from mxconv.checkpoint.safetensors_header import format_header
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.bsfp import fit, packing
from mxconv.codecs.bsfp.histogram import PatternHistogram, row_shifts_of
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import quantize_mxfp4
from mxconv.codecs.vnni8 import pack_nibbles, pack_scales
from mxconv.conversion.options import Codec, QuantizeOptions
from mxconv.conversion.plan import MAX_SLICE_WEIGHTS
from mxconv.convert import convert
from mxconv.errors import MxconvError
from mxconv.kernels import encoders
from mxconv.progress import Progress, silent
from mxconv.system.disk import flush_file, settle
from mxconv.system.memory import forget, peak_rss_bytes

BLOCK = 1 << 22  # bytes that are read at a time; random weights that repeat: times do not depend on their values
SIGMA = 0.02
SLAB_SHAPE = (1024, 8192)
NUM_SLABS = 8  # the matrix is 8192 x 8192: the fit costs the same for a small one
CHECKED_ROWS = 64
ENCODER_SAMPLES = 7


@dataclass(frozen=True)
class ConversionResult:
    """One codec. Rates are medians, in 10^9 bytes of input a second; ratios are of seconds, conversion to copy."""

    codec: str
    num_bytes: int  # of the source
    num_threads: int
    num_samples: int
    seconds: float  # cold
    input_gigabytes_per_second: float  # cold
    copy_gigabytes_per_second: float  # cold, as cp does
    ratio_to_copy: float  # cold
    flushed_copy_gigabytes_per_second: float  # cold, and on the disk at the end
    ratio_to_flushed_copy: float
    warm_seconds: float
    warm_input_gigabytes_per_second: float
    warm_copy_gigabytes_per_second: float
    warm_ratio_to_copy: float
    encoder_gigabytes_per_second: float  # in memory, one thread
    peak_rss_bytes: int


@dataclass(frozen=True)
class ConversionSample:
    """A copy, and then a conversion with its peak of memory."""

    copy_seconds: float
    flushed_copy_seconds: float
    seconds: float
    peak_rss_bytes: int


def bench_conversion(
    source: str,
    codecs: Sequence[Codec],
    num_threads: int,
    num_samples: int,
    workspace: Path | None = None,
    progress: Progress = silent,
) -> list[ConversionResult]:
    """Convert a local checkpoint with each codec.

    Args:
        source: a folder or file.
        codecs: to measure.
        num_threads: of the conversion.
        num_samples: of each figure.
        workspace: where copies and packages go for a moment; None takes the folder for temporary files.
        progress: receives the number of samples.

    Raises:
        MxconvError: the source cannot be converted, or a native encoder gives other bytes than NumPy's.
    """
    with open_checkpoint(source) as checkpoint:
        files = list(checkpoint.weight_files)
    num_bytes = sum(path.stat().st_size for path in files)
    results, done, total = [], 0, len(codecs) * 2 * num_samples
    for codec in codecs:
        encoder_rate = encoder_bytes_per_second(codec)
        cold: list[ConversionSample] = []
        warm: list[ConversionSample] = []
        for _ in range(num_samples):
            for samples in (cold, warm):
                progress("convert", done, total)
                with tempfile.TemporaryDirectory(prefix="mxconv-bench-", dir=workspace) as folder:
                    samples.append(_sample(source, files, codec, num_threads, samples is cold, Path(folder)))
                done += 1
        results.append(summarize(codec, num_bytes, num_threads, cold, warm, encoder_rate))
    progress("convert", total, total)
    return results


def summarize(
    codec: str,
    num_bytes: int,
    num_threads: int,
    cold: Sequence[ConversionSample],
    warm: Sequence[ConversionSample],
    encoder_rate: float,
) -> ConversionResult:
    """Medians of the samples, and of the ratios inside each; the encoder's rate is in bytes a second."""

    def median(samples: Sequence[ConversionSample], key: str) -> float:
        return spread([getattr(sample, key) for sample in samples]).median

    def rate(samples: Sequence[ConversionSample], key: str) -> float:
        return num_bytes / median(samples, key) / 1e9

    def ratio(samples: Sequence[ConversionSample], key: str) -> float:
        return spread([sample.seconds / getattr(sample, key) for sample in samples]).median

    return ConversionResult(
        codec=codec,
        num_bytes=num_bytes,
        num_threads=num_threads,
        num_samples=len(cold),
        seconds=median(cold, "seconds"),
        input_gigabytes_per_second=rate(cold, "seconds"),
        copy_gigabytes_per_second=rate(cold, "copy_seconds"),
        ratio_to_copy=ratio(cold, "copy_seconds"),
        flushed_copy_gigabytes_per_second=rate(cold, "flushed_copy_seconds"),
        ratio_to_flushed_copy=ratio(cold, "flushed_copy_seconds"),
        warm_seconds=median(warm, "seconds"),
        warm_input_gigabytes_per_second=rate(warm, "seconds"),
        warm_copy_gigabytes_per_second=rate(warm, "copy_seconds"),
        warm_ratio_to_copy=ratio(warm, "copy_seconds"),
        encoder_gigabytes_per_second=encoder_rate / 1e9,
        peak_rss_bytes=max(sample.peak_rss_bytes for sample in [*cold, *warm]),
    )


def _sample(
    source: str, files: Sequence[Path], codec: Codec, num_threads: int, is_cold: bool, folder: Path
) -> ConversionSample:
    _prepare(files, is_cold)
    copies = [folder / path.name for path in files]
    begin = time.perf_counter()
    for path, copy in zip(files, copies, strict=True):
        shutil.copyfile(path, copy)
    copied = time.perf_counter()
    for copy in copies:
        flush_file(copy)
    flushed = time.perf_counter()
    for copy in copies:
        copy.unlink()
    _prepare(files, is_cold)
    # a fresh interpreter: a forked one would count this process's memory as its own
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        converted = pool.submit(_convert, source, folder / "package", codec, num_threads).result()
    return ConversionSample(copied - begin, flushed - begin, *converted)


def _convert(source: str, package: Path, codec: Codec, num_threads: int) -> tuple[float, int]:
    """Seconds and peak memory of a conversion, in the process of its own."""
    begin = time.perf_counter()
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(codec=codec, num_threads=num_threads))
    return time.perf_counter() - begin, peak_rss_bytes()


def _prepare(files: Sequence[Path], is_cold: bool) -> None:
    """Let writes settle, and drop files from the page cache or read them into it."""
    settle()
    buffer = np.empty(BLOCK, np.uint8)
    for path in files:
        with path.open("rb", buffering=0) as file:
            if is_cold:
                forget(file)
            else:
                while file.readinto(buffer.data):
                    pass


def encoder_bytes_per_second(codec: Codec) -> float:
    """Bytes of 16-bit weights a second; what the encoder writes is compared with the NumPy codec's first.

    Raises:
        MxconvError: the bytes differ.
    """
    patterns = np.tile(_random_patterns(SLAB_SHAPE), (NUM_SLABS, 1))
    check_encoder(codec, patterns[:CHECKED_ROWS])
    samples = [seconds_of(lambda: deque(encoded(codec, patterns), maxlen=0)) for _ in range(1 + ENCODER_SAMPLES)]
    return patterns.nbytes / spread(samples[1:]).median


def check_encoder(codec: str, patterns: U16) -> None:
    """Raises MxconvError unless the native encoder gives the same arrays as the NumPy codec."""
    pairs = zip(encoded(codec, patterns), encoded(codec, patterns, native=False), strict=True)
    if not all(np.array_equal(mine, other) for mine, other in pairs):
        raise MxconvError(
            f"encoder {codec}: other bytes than the NumPy codec's; the same are required. It is not measured; please "
            "report this as a defect."
        )


def encoded(codec: str, patterns: U16, native: bool = True) -> Iterator[NDArray[Any]]:
    """The arrays of a BF16 matrix, slice by slice, by the native encoder or the NumPy codec."""
    step = max(MAX_SLICE_WEIGHTS // patterns.shape[1], 1)
    slices = [patterns[start : start + step] for start in range(0, len(patterns), step)]
    if codec == "mxfp4":
        for part in slices:
            if native:
                yield from encoders.encode_mxfp4(part, BF16)
            else:
                codes, scales = quantize_mxfp4(BF16.decode(part))
                yield from (pack_nibbles(codes), pack_scales(scales))
        return
    counts, first = PatternHistogram(BF16), 0
    for part in slices:
        if native:
            encoders.add_to_histogram(counts, part)
        else:
            counts.add(part)
    table = (encoders.fit_table if native else fit.fit_table)(counts).table
    for part in slices:
        known = counts.row_shifts[first : first + len(part)] if native else row_shifts_of(part, BF16)
        first += len(part)
        packed = (encoders if native else packing).encode_bsfp(part, table, known if table.has_row_shifts else None)
        yield from (array for array in vars(packed).values() if array is not None)


def write_random_checkpoint(folder: Path, num_bytes: int, progress: Progress = silent) -> None:
    """Write BF16 matrices of 4096 x 4096 and a smaller last one, about `num_bytes` in all, in slices.

    Args:
        folder: exists, and is empty.
        num_bytes: of weights.
        progress: receives the number of bytes.
    """
    side = 4096
    num_rows = max(num_bytes // (2 * side), 1)
    shapes: list[tuple[int, ...]] = [(min(side, num_rows - first), side) for first in range(0, num_rows, side)]
    entries = [(f"model.layers.{i}.mlp.up_proj.weight", "BF16", shape) for i, shape in enumerate(shapes)]
    header, _ = format_header(entries, {"format": "pt"})
    block, total = _random_patterns((BLOCK,)), num_rows * side
    with (folder / "model.safetensors").open("xb") as file:
        file.write(header)
        for begin in range(0, total, BLOCK):
            file.write(block[: total - begin].tobytes())
            progress("write random weights", min(begin + BLOCK, total) * 2, total * 2)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 1, "torch_dtype": "bfloat16"}))


def _random_patterns(shape: tuple[int, ...]) -> U16:
    """Gaussian weights as BF16 patterns, the same for the same shape."""
    return BF16.encode(np.random.default_rng(0).standard_normal(shape, np.float32) * np.float32(SIGMA))
