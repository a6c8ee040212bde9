"""A conversion against a copy of the same bytes, and the encoders alone.

Copy and conversion take turns. Before a cold sample the source is dropped from the page cache and pending writes are
waited for; before a warm one it is read. A conversion runs in a process of its own, which knows its own peak memory,
and is timed without the start of that process. It flushes what it writes to the disk; `cp` does not, so a flushed copy
is timed too. An encoder runs in memory, by one thread, BSFP with its fit.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from mxconv.arrays import U16
from mxconv.bench.operands import gaussian_patterns, stored_bsfp, stored_mxfp4
from mxconv.bench.rates import seconds_of, spread
from mxconv.checkpoint.safetensors_header import format_header
from mxconv.checkpoint.source import open_checkpoint
from mxconv.codecs.float16 import BF16
from mxconv.codecs.mxfp4 import quantize_mxfp4
from mxconv.codecs.vnni8 import unpack_nibbles, unpack_scales
from mxconv.conversion.options import Codec, QuantizeOptions
from mxconv.convert import convert
from mxconv.errors import MxconvError
from mxconv.progress import Progress, silent
from mxconv.system.disk import flush_file, settle
from mxconv.system.processor import forget, peak_rss_bytes

BLOCK = 1 << 22  # bytes that are read at a time; random weights that repeat: times do not depend on their values
ENCODED_SHAPE = (8192, 8192)  # the fit costs the same for a small one
CHECKED_ROWS = 64
ENCODER_SAMPLES = 7


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
) -> list[dict[str, Any]]:
    """Convert a local checkpoint, a folder or a file, with each codec.

    Copies and packages go into `workspace` for a moment; None takes the folder for temporary files.

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
) -> dict[str, Any]:
    """The figures of one codec: medians of the samples, and of the ratios inside each.

    Rates are in 10^9 bytes of input a second; ratios are of seconds, conversion to copy. The keys of samples whose
    source was in the page cache begin with `warm_`; `encoder_rate` is in bytes a second, of one thread in memory.
    """
    own = _medians(num_bytes, cold)
    own["flushed_copy_gigabytes_per_second"] = num_bytes / _median(cold, "flushed_copy_seconds") / 1e9
    own["ratio_to_flushed_copy"] = spread([each.seconds / each.flushed_copy_seconds for each in cold]).median
    return {
        "codec": codec,
        "num_bytes": num_bytes,
        "num_threads": num_threads,
        "num_samples": len(cold),
        **own,
        **{f"warm_{key}": value for key, value in _medians(num_bytes, warm).items()},
        "encoder_gigabytes_per_second": encoder_rate / 1e9,
        "peak_rss_bytes": max(sample.peak_rss_bytes for sample in [*cold, *warm]),
    }


def _medians(num_bytes: int, samples: Sequence[ConversionSample]) -> dict[str, float]:
    return {
        "seconds": _median(samples, "seconds"),
        "input_gigabytes_per_second": num_bytes / _median(samples, "seconds") / 1e9,
        "copy_gigabytes_per_second": num_bytes / _median(samples, "copy_seconds") / 1e9,
        "ratio_to_copy": spread([sample.seconds / sample.copy_seconds for sample in samples]).median,
    }


def _median(samples: Sequence[ConversionSample], key: str) -> float:
    return spread([getattr(sample, key) for sample in samples]).median


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
    """Bytes of 16-bit weights a second; what the encoder writes is read by the NumPy codec first.

    Raises:
        MxconvError: the bytes mean other weights than the NumPy codec's.
    """
    patterns = gaussian_patterns(ENCODED_SHAPE)
    check_encoder(codec, patterns[:CHECKED_ROWS])
    encode = stored_bsfp if codec == "bsfp" else stored_mxfp4
    samples = [seconds_of(lambda: encode(patterns)) for _ in range(1 + ENCODER_SAMPLES)]
    return patterns.nbytes / spread(samples[1:]).median


def check_encoder(codec: str, patterns: U16) -> None:
    """Encode some rows, and read them by NumPy.

    Raises:
        MxconvError: BSFP does not give the weights back, or MXFP4 has other bytes than the NumPy codec's.
    """
    if codec == "bsfp":
        is_same = np.array_equal(stored_bsfp(patterns).target_rows(0, len(patterns)), patterns)
    else:
        codes, scales = quantize_mxfp4(BF16.decode(patterns))
        stored = stored_mxfp4(patterns)
        is_same = np.array_equal(unpack_nibbles(stored.codes)[: len(codes)], codes)
        is_same &= np.array_equal(unpack_scales(stored.scales)[: len(codes)], scales)
    if not is_same:
        raise MxconvError(
            f"encoder {codec}: other weights than the NumPy codec's; the same are required. It is not measured; please "
            "report this as a defect."
        )


def write_random_checkpoint(folder: Path, num_bytes: int, progress: Progress = silent) -> None:
    """Write BF16 matrices of 4096 x 4096 and a smaller last one, about `num_bytes` in all, into an empty folder."""
    side = 4096
    num_rows = max(num_bytes // (2 * side), 1)
    shapes: list[tuple[int, ...]] = [(min(side, num_rows - first), side) for first in range(0, num_rows, side)]
    entries = [(f"model.layers.{i}.mlp.up_proj.weight", "BF16", shape) for i, shape in enumerate(shapes)]
    header, _ = format_header(entries, {"format": "pt"})
    block, total = gaussian_patterns((1, BLOCK))[0], num_rows * side
    with (folder / "model.safetensors").open("xb") as file:
        file.write(header)
        for begin in range(0, total, BLOCK):
            file.write(block[: total - begin].tobytes())
            progress("write random weights", min(begin + BLOCK, total) * 2, total * 2)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 1, "torch_dtype": "bfloat16"}))
