"""Rates of this machine as a hardware description for `mxconv cost`: bandwidth, peaks, kernels' shares of them.

Bandwidth and peaks are medians of samples that take turns. A kernel's share of the roofline is measured against the
rates beside it, so it holds when the machine's own rates move. The last-level cache is not measured: its size is what
Linux lists.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mxconv import __version__
from mxconv.bench.kernel_speed import KernelResult
from mxconv.bench.machine import Machine, implementations, listed_cache_bytes, native_engine, this_machine
from mxconv.bench.rates import PeakArithmetic, ReadBandwidth, Spread, spread
from mxconv.cost.hardware import BANDWIDTH, CACHE, FRACTIONS, PEAKS, THIS_MACHINE
from mxconv.kernels.engine import usable_processors
from mxconv.system.disk import write_output
from mxconv.system.processor import cpu_name

FORMS = {"float": "fp32", "bf16": "bf16", "int8": "int8"}  # of the engine, of a hardware description
SAMPLE_BYTES = 1 << 27  # of bandwidth
QUICK_SAMPLES = 8
QUICKLY = ", measured in two seconds; `mxconv bench machine --write` measures kernels too"


@dataclass(frozen=True)
class Peak:
    """Giga multiply-adds a second of one form on one instruction set, all threads together."""

    implementation: str
    form: str
    giga_multiply_adds_per_second: float
    p10: float
    p90: float


@dataclass(frozen=True)
class Capability:
    """Rates in 10^9 a second; the best instruction set comes first."""

    read_bandwidth: Spread
    peaks: list[Peak]
    last_level_cache_bytes: int | None = None  # as Linux lists it; None where it lists none


def measure_capability(implementations: Sequence[str], num_threads: int, num_samples: int) -> Capability:
    """Sample bandwidth and every peak in turns."""
    engines = [native_engine(name, num_threads) for name in implementations]
    bandwidth = ReadBandwidth(engines[0])
    peaks = {(engine.name, form): PeakArithmetic(engine, form) for engine in engines for form in FORMS}
    read: list[float] = []
    found: dict[tuple[str, str], list[float]] = {key: [] for key in peaks}
    for _ in range(num_samples):
        read.append(bandwidth.sample(SAMPLE_BYTES) / 1e9)
        for key, peak in peaks.items():
            found[key].append(peak.sample() / 1e9)
    rows = [Peak(name, FORMS[form], *vars(spread(samples)).values()) for (name, form), samples in found.items()]
    return Capability(spread(read), rows, listed_cache_bytes())


def measured_quickly(folder: Path) -> Path:
    """Return the description of this processor in a cache folder, measured in two seconds where it has none.

    It has bandwidth and peaks alone. Its name changes with the processor, kernels, threads and version of mxconv.
    """
    (name,), num_threads = implementations(), usable_processors()
    key = hashlib.sha256(repr((__version__, cpu_name(), name, num_threads)).encode()).hexdigest()[:16]
    path = folder / f"{key}.toml"

    def write(partial: Path) -> None:
        capability = measure_capability([name], num_threads, QUICK_SAMPLES)
        partial.write_text(to_toml(capability, this_machine(num_threads), note=QUICKLY), encoding="utf-8")

    if not path.is_file():
        write_output(path, write)
    return path


def to_toml(capability: Capability, machine: Machine, results: Iterable[KernelResult] = (), note: str = "") -> str:
    """The description of this machine by its best instruction set, with a note at the end of its one line."""
    best = capability.peaks[0].implementation
    threads = machine.described.partition(",")[0]
    source = f"measured by `mxconv bench machine`: {threads}, {best}, {machine.compiler}"
    cache = capability.last_level_cache_bytes
    lines = [
        f'name = "{THIS_MACHINE}"',
        f"description = {_quoted(f'{machine.cpu}, {threads}, {best}{note}')}",
        f"{BANDWIDTH} = {capability.read_bandwidth.median:.2f}",
        *([] if cache is None else [f"{CACHE} = {cache}"]),
        "",
        f"[{PEAKS}]",
        *(f"{p.form} = {p.giga_multiply_adds_per_second:.3f}" for p in capability.peaks if p.implementation == best),
        "",
        "[sources]",
        f"{BANDWIDTH} = {_quoted(source)}",
        f"{PEAKS} = {_quoted(source)}",
        *([] if cache is None else [f"{CACHE} = {_quoted('as Linux lists it for the first processor')}"]),
    ]
    by_kernel: dict[str, list[KernelResult]] = {}
    for result in results:
        by_kernel.setdefault(result.kernel, []).append(result)
    for kernel, rows in by_kernel.items():
        lines += ["", f"[{FRACTIONS}.{kernel}]"]
        lines += [f"{row.num_tokens} = {min(row.fraction_of_roofline, 1.0):.4f}" for row in rows]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A basic TOML string."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
