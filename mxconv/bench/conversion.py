"""A conversion against a copy of the same bytes, and the encoders alone.

Copy and conversion take turns. Before a cold sample the source is dropped from the page cache and pending writes are
waited for; before a warm one it is read. A conversion runs in a process of its own, which knows its own peak memory,
and is timed without the start of that process. It flushes what it writes to the disk; `cp` does not, so a flushed copy
is timed too.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from mxconv.bench.encoders import encoder_bytes_per_second
from mxconv.bench.samples import spread
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import Codec, QuantizeOptions
from mxconv.convert import convert
from mxconv.progress import Progress, silent
from mxconv.system.disk import flush_file, settle
from mxconv.system.memory import forget, peak_rss_bytes

BLOCK = 1 << 22
COLD, WARM = "cold", "warm"


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
class Conversion:
    """How long a conversion took, and how much memory."""

    seconds: float
    peak_rss_bytes: int


@dataclass(frozen=True)
class Sample:
    """A copy and a conversion, one after the other."""

    copy_seconds: float
    flushed_copy_seconds: float
    conversion: Conversion


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
        progress: told about every sample.

    Raises:
        MxconvError: the source cannot be converted, or a native encoder gives other bytes than NumPy's.
    """
    with open_checkpoint(source) as checkpoint:
        files = list(checkpoint.weight_files)
    results = []
    total = len(codecs) * 2 * num_samples
    for number, codec in enumerate(codecs):
        encoder_rate = encoder_bytes_per_second(codec)
        samples: dict[str, list[Sample]] = {COLD: [], WARM: []}
        for index in range(num_samples):
            for state, taken in samples.items():
                progress("convert", number * 2 * num_samples + 2 * index + (state == WARM), total)
                with tempfile.TemporaryDirectory(prefix="mxconv-bench-", dir=workspace) as folder:
                    taken.append(_sample(source, files, codec, num_threads, state, Path(folder)))
        results.append(summarize(codec, _num_bytes(files), num_threads, samples[COLD], samples[WARM], encoder_rate))
    progress("convert", total, total)
    return results


def summarize(
    codec: str,
    num_bytes: int,
    num_threads: int,
    cold: Sequence[Sample],
    warm: Sequence[Sample],
    encoder_bytes_per_second: float,
) -> ConversionResult:
    """Medians of the samples, and of the ratios inside each."""

    def rate(seconds: Sequence[float]) -> float:
        return num_bytes / spread(seconds).median / 1e9

    cold_seconds = [sample.conversion.seconds for sample in cold]
    warm_seconds = [sample.conversion.seconds for sample in warm]
    return ConversionResult(
        codec=codec,
        num_bytes=num_bytes,
        num_threads=num_threads,
        num_samples=len(cold),
        seconds=spread(cold_seconds).median,
        input_gigabytes_per_second=rate(cold_seconds),
        copy_gigabytes_per_second=rate([sample.copy_seconds for sample in cold]),
        ratio_to_copy=spread([s.conversion.seconds / s.copy_seconds for s in cold]).median,
        flushed_copy_gigabytes_per_second=rate([sample.flushed_copy_seconds for sample in cold]),
        ratio_to_flushed_copy=spread([s.conversion.seconds / s.flushed_copy_seconds for s in cold]).median,
        warm_seconds=spread(warm_seconds).median,
        warm_input_gigabytes_per_second=rate(warm_seconds),
        warm_copy_gigabytes_per_second=rate([sample.copy_seconds for sample in warm]),
        warm_ratio_to_copy=spread([s.conversion.seconds / s.copy_seconds for s in warm]).median,
        encoder_gigabytes_per_second=encoder_bytes_per_second / 1e9,
        peak_rss_bytes=max(sample.conversion.peak_rss_bytes for sample in [*cold, *warm]),
    )


def _sample(source: str, files: Sequence[Path], codec: Codec, num_threads: int, state: str, folder: Path) -> Sample:
    prepare = _forget if state == COLD else _read
    prepare(files)
    copies = folder / "copies"
    copies.mkdir()
    begin = time.perf_counter()
    for path in files:
        shutil.copyfile(path, copies / path.name)
    copied = time.perf_counter()
    for path in files:
        flush_file(copies / path.name)
    flushed = time.perf_counter()
    shutil.rmtree(copies)
    prepare(files)
    # a fresh interpreter: a forked one would count this process's memory as its own
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        conversion = pool.submit(_convert, source, folder / "package", codec, num_threads).result()
    return Sample(copied - begin, flushed - begin, conversion)


def _convert(source: str, package: Path, codec: Codec, num_threads: int) -> Conversion:
    """In the process of its own."""
    begin = time.perf_counter()
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, package, QuantizeOptions(codec=codec, num_threads=num_threads))
    return Conversion(time.perf_counter() - begin, peak_rss_bytes())


def _num_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def _forget(files: Sequence[Path]) -> None:
    """Drop files from the page cache, and let writes settle."""
    settle()
    for path in files:
        with path.open("rb") as file:
            forget(file)


def _read(files: Sequence[Path]) -> None:
    settle()
    for path in files:
        with path.open("rb", buffering=0) as file:
            buffer = np.empty(BLOCK, np.uint8)
            while file.readinto(buffer.data):
                pass
