"""The options of a conversion."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from mxconv.codecs.bsfp.clipped import GroupScales
from mxconv.codecs.mxfp4 import SCALE_RULES, ScaleRule
from mxconv.errors import MxconvError
from mxconv.package.manifest import OptionsRecord

Codec = Literal["mxfp4", "bsfp"]
Head = Literal["int8", "exact", "quantize", "keep"]
DEFAULT_HEADS: dict[Codec, Head] = {"mxfp4": "int8", "bsfp": "quantize"}
DEFAULT_MAX_SHARD_BYTES = 5_000_000_000
DEFAULT_CALIBRATION_TOKENS = 16_384
SCREEN_TOKENS = 4096  # enough for a head screen alone


@dataclass(frozen=True)
class QuantizeOptions:
    """Options of `mxconv quantize`; the defaults are the command's."""

    codec: Codec = "mxfp4"
    scale_rule: ScaleRule = "ocp"
    lm_head: Head | None = None  # None: int8 with MXFP4, quantize with BSFP
    skip: tuple[str, ...] = ()
    outliers: Literal["exact", "rescale"] = "exact"
    segments: Literal["fitted", "paper"] = "fitted"
    residual_bits: int | None = None  # None: the fit chooses
    group_scales: GroupScales = "unclipped"  # of a fitted table's draft
    on_nonfinite: Literal["error", "keep"] = "error"
    dtype: Literal["bf16", "fp16"] | None = None
    target: Literal["include", "reference"] | None = None  # None: include a local source, reference a Hub one
    drafts: tuple[str, ...] = ()
    draft_weights: str | None = None  # a file of codes and scales, see draft_file.py
    calibrate: tuple[str, ...] = ()  # files of texts or prompts: such a file is made by them, see calibrate.py
    calibration_tokens: int = DEFAULT_CALIBRATION_TOKENS  # of these texts, at most
    head_screen: bool = True  # whether the draft's output head gets the screen that a draft file or calibrate brings
    fits_screen: bool = False  # whether such a screen is fitted to texts without a calibration
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES
    links_target: bool = True  # an included target: the source's own files, where they can be
    num_threads: int = 1
    memory_bytes: int | None = None  # that a worker may need; no byte of a package depends on it
    force: bool = False

    def __post_init__(self) -> None:
        """Raises MxconvError for a value out of range, or an option that the codec does not have."""
        choices: dict[str, tuple[object, ...]] = {
            "codec": get_args(Codec),
            "scale_rule": SCALE_RULES,
            "lm_head": (None, *get_args(Head)),
            "outliers": ("exact", "rescale"),
            "segments": ("fitted", "paper"),
            "group_scales": get_args(GroupScales),
            "on_nonfinite": ("error", "keep"),
            "dtype": (None, "bf16", "fp16"),
            "target": (None, "include", "reference"),
            "residual_bits": (None, 8, 9, 10, 11, 12),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if value not in allowed:
                shown = ", ".join(str(choice) for choice in allowed if choice is not None)
                raise MxconvError(f"{_flag(name)}: {value!r}; one of {shown} is required.")
        for name, least in (("max_shard_bytes", 1), ("num_threads", 1), ("calibration_tokens", 256)):
            if getattr(self, name) < least:
                raise MxconvError(f"{_flag(name)}: {getattr(self, name)}; at least {least} is required.")
        other: Codec = "mxfp4" if self.codec == "bsfp" else "bsfp"
        foreign: dict[Codec, dict[str, tuple[object, ...]]] = {  # options of a codec, and what they are with the other
            "mxfp4": {
                "scale_rule": ("ocp",),
                "target": (None, "include"),
                "lm_head": (None, "exact", "quantize", "keep"),
            },
            "bsfp": {
                "outliers": ("exact",),
                "segments": ("fitted",),
                "residual_bits": (None,),
                "lm_head": (None, "int8", "quantize", "keep"),
            },
        }
        for name, harmless in foreign[other].items():
            if getattr(self, name) not in harmless:
                raise MxconvError(
                    f"{_flag(name)}: {getattr(self, name)!r} with --codec {self.codec}; only {other} has this option. "
                    f"Leave it out, or use --codec {other}."
                )
        if self.calibrate and self.draft_weights is not None:
            raise MxconvError(
                f"--calibrate: given with --draft-weights {self.draft_weights}; one of the two is required, since both "
                "choose the draft's codes. Leave one out."
            )
        if self.fits_screen and self.draft_weights is not None:
            raise MxconvError(
                f"--head-screen: given with --draft-weights {self.draft_weights}, whose own screen the draft gets; one "
                "of the two is required. Leave one out."
            )
        if self.segments == "paper" and self.residual_bits is not None:
            raise MxconvError(
                f"--residual-bits: {self.residual_bits} with --segments paper, whose width is fixed. Leave it out."
            )

    @property
    def head(self) -> Head:
        """The codec of the draft's output head."""
        return self.lm_head or DEFAULT_HEADS[self.codec]

    def record(self, is_local: bool) -> OptionsRecord:
        """As the manifest keeps them; the target's place is decided here."""
        values: dict[str, Any] = {name: getattr(self, name) for name in OptionsRecord.model_fields}
        target = self.target or ("include" if is_local or self.codec == "bsfp" else "reference")
        if self.codec == "mxfp4" or self.segments == "paper":
            values["group_scales"] = "least-squares"
        return OptionsRecord(**values | {"lm_head": self.head, "skip": list(self.skip), "target": target})


def _flag(name: str) -> str:
    return "--threads" if name == "num_threads" else "--" + name.replace("_", "-")
