"""What `--draft` says: KIND[:SUBJECT][,key=value ...], the same when converting and when decoding.

checkpoint:PATH_OR_ID   a 16-bit model as it is
package:PATH_OR_ID      a converted one, from its 4 bits; level=NAME names another of its levels
layer-skip:LAYERS       the target without some parts   streaming      the target over a sink and a window
fewer-experts:NUMBER    the target, every token sent to so many experts
swift                   the same, found while decoding  early-exit     its first layers, as many as pay
prompt-lookup           what followed here before       ngram:TABLE    what followed in a corpus
token-recycling         what the target thought of before   stand   that, behind several tokens
speculator:PATH_OR_ID   an MLP speculator, which reads the target's last hidden state
spire:PATH_OR_ID        a SPIRe draft, which sees the target's hidden states of some layers
eagle3:PATH_OR_ID       an EAGLE-3 draft head, which reads the states of a few of the target's layers
mtp                     the checkpoint's own MTP layer, which reads the target's last hidden state
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from mxconv.errors import MxconvError
from mxconv.package.manifest import Kind, LevelRecord, Shared
from mxconv.package.package_folder import find_package, find_package_or_none

SpecKind = Literal[
    "checkpoint",
    "package",
    "layer-skip",
    "swift",
    "early-exit",
    "streaming",
    "fewer-experts",
    "prompt-lookup",
    "ngram",
    "token-recycling",
    "stand",
    "speculator",
    "spire",
    "eagle3",
    "mtp",
]
DEFAULT_NUM_DRAFT_TOKENS = 8
DEFAULT_CONFIDENCE = 0.4
DEFAULT_BSFP_CONFIDENCE = 0.6
DEFAULT_FOREIGN_CONFIDENCE = 0.65  # where tokenizers differ
DEFAULT_SKIP = 0.45  # of all parts, as SWIFT (arXiv 2410.06916) leaves out
DEFAULT_MAX_NGRAM = {"prompt-lookup": 3, "stand": 4}
LOOK_UPS = ("prompt-lookup", "ngram", "token-recycling", "stand")  # no models: nothing can draft for them
# models of the target's hidden states: they come behind the models and before look-ups
READERS = ("speculator", "spire", "eagle3", "mtp")
COMMON = ("num_draft_tokens", "confidence")
OF_KIND: dict[str, tuple[str, tuple[str, ...]]] = {  # what its subject is, and its own parameters
    "checkpoint": ("PATH_OR_ID", ()),
    "package": ("PATH_OR_ID", ("level",)),
    "layer-skip": ("LAYERS", ("cache",)),
    "swift": ("", ("skip",)),
    "early-exit": ("", ()),
    "streaming": ("", ("sink", "window", "cache")),
    "fewer-experts": ("NUMBER", ("cache",)),
    "prompt-lookup": ("", ("max_ngram", "min_ngram")),
    "ngram": ("TABLE", ()),
    "token-recycling": ("", ("num_candidates",)),
    "stand": ("", ("max_ngram", "num_candidates")),
    "speculator": ("PATH_OR_ID", ("num_candidates",)),
    "spire": ("PATH_OR_ID", ()),
    "eagle3": ("PATH_OR_ID", ()),
    "mtp": ("", ("bits",)),
}
RANGES = {
    "num_draft_tokens": (1, 64),
    "max_ngram": (1, 64),
    "min_ngram": (1, 64),
    "num_candidates": (1, 64),
    "sink": (0, 2**31),
    "window": (1, 2**31),
    "bits": (4, 16),
}


@dataclass(frozen=True)
class DraftSpec:
    """One `--draft`. None leaves the choice to the default of what the draft turns out to be."""

    kind: SpecKind
    subject: str = ""
    num_draft_tokens: int | None = None
    confidence: float | None = None
    cache: Literal["shared", "own"] = "shared"
    max_ngram: int | None = None
    min_ngram: int | None = None
    num_candidates: int | None = None
    sink: int | None = None
    window: int | None = None
    skip: float | None = None
    bits: int | None = None
    level: str | None = None

    def record(
        self,
        name: str,
        codec: Literal["bf16", "f16", "bsfp", "mxfp4", "package"] | None = None,
        path: str | None = None,
        same_tokenizer: bool = True,
    ) -> LevelRecord:
        """The level that it becomes.

        Args:
            name: of the level.
            codec: of a model's weights; of `mtp` that of the package's 4-bit level.
            path: of its folder or file in the package.
            same_tokenizer: whether a model has the vocabulary of the level above.
        """
        kind: Kind = "model" if self.kind == "checkpoint" or self.kind == "package" else self.kind
        shares: list[Shared] = ["tokenizer"] if same_tokenizer else []
        if kind in ("layer-skip", "swift", "early-exit", "streaming", "fewer-experts"):
            shares = ["weights", "kv_cache", "tokenizer"] if self.cache == "shared" else ["weights", "tokenizer"]
        if kind == "mtp":
            shares = ["weights", "tokenizer"]
        default = DEFAULT_CONFIDENCE if same_tokenizer else DEFAULT_FOREIGN_CONFIDENCE
        return LevelRecord(
            name=name,
            kind=kind,
            codec=None if kind == "mtp" and self.bits == 16 else codec,
            location="package",
            files=[],
            path=path,
            shares=shares,
            num_draft_tokens=self.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS,
            confidence=default if self.confidence is None else self.confidence,
            level=self.level,
            skipped=self.subject if kind == "layer-skip" else None,
            skip=(DEFAULT_SKIP if self.skip is None else self.skip) if kind == "swift" else None,
            max_ngram=(self.max_ngram or DEFAULT_MAX_NGRAM[kind]) if kind in DEFAULT_MAX_NGRAM else None,
            min_ngram=(self.min_ngram or 1) if kind == "prompt-lookup" else None,
            num_candidates=(self.num_candidates or 8) if kind in ("token-recycling", "stand") else self.num_candidates,
            sink=(4 if self.sink is None else self.sink) if kind == "streaming" else None,
            window=(self.window or 252) if kind == "streaming" else None,
            experts=int(self.subject) if kind == "fewer-experts" else None,
        )


def parse_draft(text: str) -> DraftSpec:
    """Parse a draft specification.

    Raises:
        MxconvError: an unknown kind or parameter, or a value out of range.
    """
    kind, _, rest = text.partition(":")
    kind, *without_subject = kind.split(",") if kind.partition(",")[0] in OF_KIND else [kind]
    if kind not in OF_KIND:
        kinds = ", ".join(kind + (f":{subject}" if subject else "") for kind, (subject, _) in OF_KIND.items())
        raise MxconvError(f"--draft {text}: kind {kind!r}; one of {kinds} is required.")
    subject_name, own = OF_KIND[kind]
    parts = [*without_subject, *(rest.split(",") if rest else [])]
    subject = ""
    if subject_name:
        subject = parts.pop(0) if parts and not without_subject else ""
        if not subject:
            raise MxconvError(f"--draft {text}: names no {subject_name}; {kind}:{subject_name} is required.")
    if kind == "fewer-experts" and not (subject.isdecimal() and subject.isascii() and len(subject) < 6):
        raise MxconvError(f"--draft {text}: {subject!r} experts; a number from 0 to 99999 is required.")
    values = dict(_parameter(text, part, (*COMMON, *own)) for part in parts)
    spec = DraftSpec(kind, subject, **values)  # type: ignore[arg-type]
    least, most = spec.min_ngram or 1, spec.max_ngram or DEFAULT_MAX_NGRAM.get(kind, 1)
    if least > most:
        raise MxconvError(
            f"--draft {text}: min_ngram is {least} and max_ngram {most}; min_ngram may be max_ngram at most. Give both."
        )
    return spec


def _parameter(text: str, part: str, allowed: tuple[str, ...]) -> tuple[str, int | float | str]:
    key, _, value = part.partition("=")
    if key not in allowed or key not in {field.name for field in fields(DraftSpec)}:
        raise MxconvError(f"--draft {text}: parameter {key!r}; one of {', '.join(allowed)} is required.")
    if key == "cache":
        if value not in ("shared", "own"):
            raise MxconvError(f"--draft {text}: cache is {value!r}; shared or own is required.")
        return key, value
    if key == "level":
        if not value:
            raise MxconvError(f"--draft {text}: level has no name; that of a level of the package is required.")
        return key, value
    try:
        number = float(value) if key in ("confidence", "skip") else int(value)
    except ValueError as error:
        raise MxconvError(f"--draft {text}: {key} is {value!r}; a number is required.") from error
    if key == "bits" and number not in (4, 16):
        raise MxconvError(f"--draft {text}: bits is {value}; 4 or 16 is required.")
    low, high = RANGES.get(key, (0, 1))
    if not low <= number <= high:
        raise MxconvError(f"--draft {text}: {key} is {value}; {low} to {high} is required.")
    return key, number


def draft_package(spec: DraftSpec) -> Path | None:
    """The folder of the package that a draft is; None where it is none. Errors are those of `find_package`."""
    if spec.kind == "package":
        return find_package(spec.subject)
    return find_package_or_none(spec.subject) if spec.kind in READERS and spec.subject else None
