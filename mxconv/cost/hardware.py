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
from dataclasses import field
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.errors import MxconvError

THIS_MACHINE = "this-machine"
BANDWIDTH = "read_bandwidth_gigabytes_per_second"
PEAKS = "peak_giga_multiply_adds_per_second"
FRACTIONS = "kernel_fraction_of_roofline"
CACHE = "last_level_cache_bytes"
WIDER = {"int8": "fp8", "fp8": "bf16", "bf16": "fp16", "fp16": "fp32"}  # what computes a form that is not listed
MAX_TOML_BYTES = 1_000_000
REMEDY = "Keys carry their unit: rates are in 10^9 a second, sizes in bytes."
Text = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)]
Form = Literal["fp32", "fp16", "bf16", "fp8", "int8"]


@dataclass(frozen=True)
class Hardware:
    """A machine as the models see it. Rates are in 10^9 a second; beyond the upper limits the unit is wrong.

    `fractions` are measured shares of the roofline by kernel and number of tokens; without them a kernel is taken to
    reach it. `accelerator` describes SPEQ's machine where that is what the file is about. `last_level_cache_bytes`
    tells which targets a processor's cache holds; no model takes its speed into account.
    """

    name: Text
    description: Text
    read_bandwidth: Annotated[Number, Field(le=1e6)]
    peaks: Annotated[dict[Form, Annotated[Number, Field(le=1e9)]], Field(min_length=1)]
    sources: dict[str, Text]
    fractions: dict[str, dict[int, Annotated[Number, Field(le=1)]]] = field(default_factory=dict)
    accelerator: dict[str, Number] = field(default_factory=dict)
    last_level_cache_bytes: Annotated[int, Field(gt=0, le=10**11, strict=True)] | None = None  # None: not described

    def is_of(self, cpu: str) -> bool:
        """Whether a processor of that name was measured: its description begins with the name."""
        return f"{self.description},".startswith(f"{cpu},")

    def peak(self, form: str) -> float:
        """Giga multiply-adds a second in a form, or in the next wider one that the machine lists."""
        found: Any = form
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
        for (low, before), (high, after) in pairwise(points):
            if low <= num_tokens <= high:
                return before + (after - before) * (num_tokens - low) / (high - low)
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


KEYS = {BANDWIDTH: "read_bandwidth", PEAKS: "peaks", FRACTIONS: "fractions"}
KNOWN = ("name", "description", *KEYS, CACHE, "accelerator", "sources")


def parse_hardware(text: str, label: str) -> Hardware:
    """A description from its TOML text; errors call it `label`."""
    try:
        members: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise MxconvError(f"{label}: no valid TOML ({error}); a hardware description is required. Mend it.") from error
    for key in members:
        if key not in KNOWN:
            same = [name for name in KNOWN if name.split("_")[:2] == key.split("_")[:2]]  # it measures the same thing
            required = same[0] if same else f"one of {', '.join(KNOWN)}"
            raise MxconvError(f"{label}: key {key!r} is unknown; {required} is required. {REMEDY}")
    members = {BANDWIDTH: None, PEAKS: {}, "sources": {}, "name": None, "description": None} | members
    try:
        found = TypeAdapter(Hardware).validate_python({KEYS.get(key, key): value for key, value in members.items()})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "[key]")
        for key, name in KEYS.items():
            place = key + place.removeprefix(name) if place.split(".")[0] == name else place
        required = first["msg"].removeprefix("Input should be ")
        value = "missing" if first["input"] is None else f"{first['input']!r:.80}"
        raise MxconvError(f"{label}: {place} is {value}; {required} is required. {REMEDY}") from error
    rates = (BANDWIDTH, *(f"{PEAKS}.{form}" for form in found.peaks))
    for key in (*rates, *([CACHE] if found.last_level_cache_bytes else []), *found.accelerator):
        if not found.sources.get(key, found.sources.get(key.partition(".")[0])):
            raise MxconvError(f"{label}: no source of {key}; every number needs one. Add it, a text, under [sources].")
    return found
