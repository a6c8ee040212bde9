"""Seconds of one forward pass on a machine: bytes over bandwidth, or multiply-adds over the peak, whichever is more.

Source:
    Williams et al., Roofline, CACM 2009; per kernel and level as in ML-SpecQD (arXiv 2503.13565), Fig. 8.
"""

from dataclasses import dataclass

from mxconv.cost.counts import PassCount
from mxconv.cost.hardware import Hardware

# the kernel that multiplies each codec's weights, and the form of its products, as `mxconv bench kernels` names them
KERNELS = {
    "bf16": ("bf16", "bf16"),
    "fp16": ("fp16", "fp16"),
    "int8": ("int8", "int8"),
    "bsfp": ("bsfp-full", "bf16"),
    "mxfp4": ("mxfp4-int8", "int8"),
    "bsfp-draft": ("bsfp-draft", "int8"),
}


@dataclass(frozen=True)
class RooflinePoint:
    """One kernel of one pass. Rates are in 10^9 a second, intensity in multiply-adds a byte."""

    kernel: str
    form: str
    num_tokens: float
    num_bytes: float
    multiply_adds: float
    intensity: float
    peak: float
    attainable: float
    seconds: float
    bound: str  # memory or compute


def point(
    hardware: Hardware, kernel: str, form: str, num_tokens: float, num_bytes: float, multiply_adds: float
) -> RooflinePoint:
    """Place a kernel under the roof; measured shares of it lower the roof where the description has them."""
    peak = hardware.peak(form)
    by_memory = num_bytes / hardware.read_bandwidth / 1e9
    by_compute = multiply_adds / peak / 1e9
    seconds = max(by_memory, by_compute) / hardware.fraction(kernel, num_tokens)
    return RooflinePoint(
        kernel=kernel,
        form=form,
        num_tokens=num_tokens,
        num_bytes=num_bytes,
        multiply_adds=multiply_adds,
        intensity=multiply_adds / num_bytes if num_bytes else 0.0,
        peak=peak,
        attainable=multiply_adds / seconds / 1e9 if seconds else 0.0,
        seconds=seconds,
        bound="memory" if by_memory >= by_compute else "compute",
    )


def pass_points(hardware: Hardware, codec: str, count: PassCount) -> tuple[RooflinePoint, RooflinePoint]:
    """The products with the weights, and attention over the cache with recurrent states, of one pass."""
    kernel, form = KERNELS[codec]
    tokens = count.num_tokens * count.batch
    widest = next(form for form in ("fp32", "fp16", "bf16") if form in hardware.peaks)
    return (
        point(hardware, kernel, form, tokens, count.weight_bytes + count.scale_bytes, count.matrix_multiply_adds),
        point(hardware, "attention", widest, tokens, count.kv_bytes + count.state_bytes, count.attention_multiply_adds),
    )
