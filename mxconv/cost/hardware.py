"""Descriptions of machines: TOML files with the unit in each key and a source for each number.

    name = "h100-sxm"
    description = "NVIDIA H100 SXM5, 80 GB"
    read_bandwidth_gigabytes_per_second = 3350.0
    last_level_cache_bytes = 50_000_000  # may be left out
    [peak_giga_multiply_adds_per_second]
    bf16 = 494700.0
    [sources]
    read_bandwidth_gigabytes_per_second = "..."

Named ones lie in mxconv/cost/hardware/ and in the user's folder, `$XDG_DATA_HOME/mxconv/hardware` (by default
~/.local/share); any other is given by its path. `mxconv bench machine --write` makes `this-machine`.
"""

import os
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.errors import MxconvError

THIS_MACHINE = "this-machine"
BANDWIDTH = "read_bandwidth_gigabytes_per_second"
PEAKS = "peak_giga_multiply_adds_per_second"
FRACTIONS = "kernel_fraction_of_roofline"
CACHE = "last_level_cache_bytes"
FORMS = ("fp32", "fp16", "bf16", "fp8", "int8")
WIDER = {"int8": "fp8", "fp8": "bf16", "bf16": "fp16", "fp16": "fp32"}  # what computes a form that is not listed
MAX_TOML_BYTES = 1_000_000
# a petabyte a second, 10^18 multiply-adds a second, 100 GB: beyond, the unit is wrong
MOST = {BANDWIDTH: 1e6, PEAKS: 1e9, CACHE: 1e11}


@dataclass(frozen=True)
class Hardware:
    """A machine as the models see it. Rates are in 10^9 a second.

    `fractions` are measured shares of the roofline by kernel and number of tokens; without them a kernel is taken to
    reach it. `accelerator` describes SPEQ's machine where that is what the file is about. `last_level_cache_bytes`
    tells which targets a processor's cache holds; no model takes its speed into account.
    """

    name: str
    description: str
    read_bandwidth: float
    peaks: dict[str, float]
    sources: dict[str, str]
    fractions: dict[str, dict[int, float]] = field(default_factory=dict)
    accelerator: dict[str, float] = field(default_factory=dict)
    last_level_cache_bytes: int | None = None  # None: not described

    def peak(self, form: str) -> float:
        """Giga multiply-adds a second in a form, or in the next wider one that the machine lists."""
        found = form
        while found not in self.peaks:
            if found not in WIDER:
                raise MxconvError(
                    f"hardware {self.name}: peaks of {', '.join(self.peaks)}; one that computes {form} is required. "
                    f"Add it under [{PEAKS}]."
                )
            found = WIDER[found]
        return self.peaks[found]

    def intensity(self, form: str) -> float:
        """FLOPs a byte at which memory and arithmetic take equally long; a multiply-add is two FLOPs."""
        return 2 * self.peak(form) / self.read_bandwidth

    def fraction(self, kernel: str, num_tokens: float) -> float:
        """The share of the roofline that a kernel reaches, interpolated between measured widths; 1 where unknown."""
        points = sorted(self.fractions.get(kernel, {}).items())
        if not points:
            return 1.0
        for (low, before), (high, behind) in pairwise(points):
            if low <= num_tokens <= high:
                return before + (behind - before) * (num_tokens - low) / (high - low)
        return points[0][1] if num_tokens < points[0][0] else points[-1][1]


def user_folder() -> Path:
    """Where a user's own descriptions lie."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "mxconv" / "hardware"


def hardware_names() -> list[str]:
    """All descriptions that a name finds."""
    inside = [entry.name for entry in files("mxconv.cost").joinpath("hardware").iterdir()]
    own = [path.name for path in user_folder().glob("*.toml")] if user_folder().is_dir() else []
    return sorted({name.removesuffix(".toml") for name in (*inside, *own) if name.endswith(".toml")})


def open_hardware(name: str) -> Hardware:
    """A description by its name or by its path.

    Raises:
        CheckpointError: a file that cannot be read.
        MxconvError: no such name, or a file that is no description.
    """
    if name.endswith(".toml") or "/" in name or os.sep in name:
        return read_hardware(Path(name))
    own = user_folder() / f"{name}.toml"
    if own.is_file():
        return read_hardware(own)
    if name in hardware_names():
        text = files("mxconv.cost").joinpath("hardware", f"{name}.toml").read_text("utf-8")
        return parse_hardware(text, f"{name}.toml")
    if name == THIS_MACHINE:
        raise MxconvError(
            f"hardware {THIS_MACHINE}: not measured yet; {own} is required. "
            f"Run `mxconv bench machine --write`, or name one of {', '.join(hardware_names())}."
        )
    raise MxconvError(
        f"hardware {name!r}: unknown; {', '.join(hardware_names())}, or a .toml file is required. Choose one."
    )


def read_hardware(path: Path) -> Hardware:
    """Raises CheckpointError where the file cannot be read, MxconvError where it is no description."""
    num_bytes = check_regular_file(path)
    if num_bytes > MAX_TOML_BYTES:
        raise MxconvError(
            f"{path}: {num_bytes:,} bytes; at most {MAX_TOML_BYTES:,} are read. Check that it describes a machine."
        )
    with open_file(path) as file:
        raw = file.read(num_bytes)
    try:
        return parse_hardware(raw.decode(), str(path))
    except UnicodeDecodeError as error:
        raise MxconvError(f"{path}: no UTF-8 ({error}); TOML in UTF-8 is required. Save it as UTF-8.") from error


def parse_hardware(text: str, label: str) -> Hardware:
    """A description from its TOML text; errors call it `label`."""
    try:
        members: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MxconvError(f"{label}: no valid TOML ({error}); a hardware description is required. Mend it.") from error
    known = ("name", "description", BANDWIDTH, PEAKS, FRACTIONS, CACHE, "accelerator", "sources")
    for key in members:
        if key not in known:
            raise MxconvError(f"{label}: key {key!r} is unknown; {_nearest(key, known)}. {UNITS}")
    peaks = {form: _rate(value, f"{PEAKS}.{form}", label) for form, value in _table(members, PEAKS, label).items()}
    for form in peaks:
        if form not in FORMS:
            raise MxconvError(f"{label}: {PEAKS}.{form} is unknown; one of {', '.join(FORMS)} is required. {UNITS}")
    if not peaks:
        raise MxconvError(f"{label}: no peak; at least one of {', '.join(FORMS)} under [{PEAKS}] is required. {UNITS}")
    sources = _table(members, "sources", label)
    accelerator = _table(members, "accelerator", label)
    cache = members.get(CACHE)
    caches = () if cache is None else (CACHE,)
    for key in (BANDWIDTH, *(f"{PEAKS}.{form}" for form in peaks), *caches, *accelerator):
        source = sources.get(key, sources.get(key.partition(".")[0]))
        if not isinstance(source, str) or not source:
            raise MxconvError(f"{label}: no source of {key}; every number needs one. Add it, a text, under [sources].")
    return Hardware(
        name=_text(members, "name", label),
        description=_text(members, "description", label),
        read_bandwidth=_rate(members.get(BANDWIDTH), BANDWIDTH, label),
        peaks=peaks,
        sources=sources,
        fractions={kernel: _fractions(value, kernel, label) for kernel, value in members.get(FRACTIONS, {}).items()},
        accelerator={key: _number(value, f"accelerator.{key}", label) for key, value in accelerator.items()},
        last_level_cache_bytes=None if cache is None else round(_rate(cache, CACHE, label)),
    )


UNITS = "Keys carry their unit: rates are in 10^9 a second, sizes in bytes."


def _nearest(key: str, known: tuple[str, ...]) -> str:
    """What is required in place of an unknown key: the one that measures the same thing, or any."""
    same = [name for name in known if name.split("_")[:2] == key.split("_")[:2]]
    return f"{same[0]} is required" if same else f"one of {', '.join(known)} is required"


def _table(members: dict[str, Any], key: str, label: str) -> dict[str, Any]:
    value = members.get(key, {})
    if not isinstance(value, dict):
        raise MxconvError(f"{label}: {key} is {value!r}; a table, [{key}], is required. Write it as one.")
    return value


def _text(members: dict[str, Any], key: str, label: str) -> str:
    value = members.get(key)
    if not isinstance(value, str) or not value:
        raise MxconvError(f"{label}: {key} is {value!r}; a text is required. Add it.")
    return value


def _number(value: object, key: str, label: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not (isfinite(value) and value > 0):
        found = "missing" if value is None else repr(value)
        raise MxconvError(f"{label}: {key} is {found}; a number above 0 is required. {UNITS}")
    return float(value)


def _rate(value: object, key: str, label: str) -> float:
    number = _number(value, key, label)
    most = MOST[key.partition(".")[0]]
    if number > most:
        raise MxconvError(f"{label}: {key} is {number:g}; at most {most:g} is required. {UNITS}")
    return number


def _fractions(value: object, kernel: str, label: str) -> dict[int, float]:
    """Shares of the roofline by number of tokens, whose keys are decimal strings in TOML."""
    if not isinstance(value, dict) or not all(str(key).isdecimal() for key in value):
        raise MxconvError(
            f"{label}: {FRACTIONS}.{kernel} is {value!r}; shares by number of tokens are required. Write {{ 1 = 0.9 }}."
        )
    shares = {int(width): _number(share, f"{FRACTIONS}.{kernel}.{width}", label) for width, share in value.items()}
    for width, share in shares.items():
        if share > 1:
            raise MxconvError(
                f"{label}: {FRACTIONS}.{kernel}.{width} is {share:g}; a share of the roofline, at most 1, is required. "
                "Give it as a fraction, not in percent."
            )
    return shares
