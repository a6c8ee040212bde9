"""SPEQ's accelerator: cycles, bytes and energy of its forward passes, and speculation on it against other designs.

    cycles  = passes * (weights / (elements * weights a cycle) + attention / elements)      elements: of one tile
    seconds = max(cycles / clock, DRAM bytes / bandwidth)
    energy  = DRAM bits + weights and KV through the SRAM buffers + multiply-adds of every token

The sizes are those of SPEQ (arXiv 2510.18525, section IV): 8 tiles of 128 elements at 500 MHz, one weight an element
and cycle in full mode and three in quantize mode, three buffers of 512 KB. The paper leaves open, and we assume: a tile
works on one token and all tiles receive the same weights; attention is computed in FP16 at one multiply-add an element
and cycle in both modes; the KV cache is in FP16 and read once a pass; arithmetic and DRAM overlap; leakage and the
special function unit (norms, softmax) are left out.

Olive (Guo et al., ISCA 2023) and Tender (Lee et al., ISCA 2024) are modelled as the same array with 8-bit weights and a
rate of their own. Those two rates are fitted to the published averages 2.07/1.53 and 2.07/1.45.
"""

from dataclasses import dataclass, fields
from math import ceil
from typing import Literal

from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.counts import BITS, attention_multiply_adds, kv_bytes, multiplied_weights, state_bytes
from mxconv.cost.hardware import Hardware
from mxconv.cost.speedup import expected_tokens
from mxconv.errors import MxconvError

Mode = Literal["full", "draft", "olive", "tender"]
MODE_BITS = {"full": BITS["fp16"], "draft": BITS["bsfp-draft"], "olive": BITS["int8"], "tender": BITS["int8"]}
ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class Accelerator:
    """Sizes and energies, with the keys of the [accelerator] table of a hardware description.

    Up to `num_tiles` tokens take as long as one, since each tile works on a token of its own.
    """

    num_tiles: float
    num_elements_per_tile: float
    clock_megahertz: float
    full_weights_per_cycle: float  # an element
    draft_weights_per_cycle: float
    buffer_kilobytes: float  # each of three: weights, activations, outputs
    dram_picojoules_per_bit: float
    sram_picojoules_per_byte: float
    full_multiply_add_picojoules: float
    draft_multiply_add_picojoules: float
    olive_weights_per_cycle: float  # 8-bit designs of as many elements
    tender_weights_per_cycle: float
    read_bandwidth: float  # GB/s of DRAM

    @classmethod
    def of(cls, hardware: Hardware) -> "Accelerator":
        """Read the table of a description. Raises MxconvError where a key is missing or unknown."""
        keys = [field.name for field in fields(cls) if field.name != "read_bandwidth"]
        missing = [key for key in keys if key not in hardware.accelerator]
        if missing:
            raise MxconvError(
                f"hardware {hardware.name}: accelerator.{missing[0]} is missing; the keys {', '.join(keys)} are "
                "required. Take speq-28nm as an example."
            )
        if unknown := [key for key in hardware.accelerator if key not in keys]:
            raise MxconvError(
                f"hardware {hardware.name}: accelerator.{unknown[0]} is unknown; one of {', '.join(keys)} is required. "
                "Keys carry their unit."
            )
        return cls(**hardware.accelerator, read_bandwidth=hardware.read_bandwidth)


@dataclass(frozen=True)
class AcceleratorPass:
    """Cycles, bytes, seconds and energy of one forward pass."""

    mode: Mode
    num_tokens: float
    num_passes: int  # how often the weights go through the array
    compute_cycles: float
    dram_cycles: float
    dram_bytes: float
    seconds: float
    dram_joules: float
    buffer_joules: float
    array_joules: float

    @property
    def chip_joules(self) -> float:
        return self.buffer_joules + self.array_joules

    @property
    def joules(self) -> float:
        return self.dram_joules + self.chip_joules

    def watts(self) -> dict[str, float]:
        """Mean power by module, in watts."""
        modules = {"dram": self.dram_joules, "buffers": self.buffer_joules, "array": self.array_joules}
        return {name: joules / self.seconds for name, joules in modules.items()}


def tokens_at_once(accelerator: Accelerator, a: ModelSizes) -> int:
    """The number of tokens of one pass: one a tile, as far as the input of the widest layer fits the activation buffer.

    Raises:
        MxconvError: not even one does.
    """
    widest = max(a.hidden_size, a.num_attention_heads * a.head_dim, a.expert_size, *a.dense_sizes)
    fitting = int(accelerator.buffer_kilobytes * 1024 // (widest * ACTIVATION_BYTES))
    if fitting < 1:
        raise MxconvError(
            f"accelerator: a layer's input of {widest:,} values; at most {accelerator.buffer_kilobytes:g} KB fit the "
            "activation buffer. Describe an accelerator with a larger one."
        )
    return min(int(accelerator.num_tiles), fitting)


def run_pass(
    accelerator: Accelerator, a: ModelSizes, mode: Mode, num_tokens: float = 1, context: int = 1024
) -> AcceleratorPass:
    """Compute the cost of one pass over tokens of one sequence.

    Args:
        mode: full reads FP16 weights, draft the 4-bit part and a scale for 128; olive and tender 8-bit weights.
        num_tokens: may be a mean.
        context: positions in the cache.
    """
    num_passes = max(ceil(num_tokens / tokens_at_once(accelerator, a)), 1)
    weights = multiplied_weights(a, num_tokens / num_passes)
    attention = attention_multiply_adds(a, context)
    rate: float = getattr(accelerator, f"{mode}_weights_per_cycle")
    cycles = num_passes * (weights / rate + attention) / accelerator.num_elements_per_tile
    read = num_passes * (weights * MODE_BITS[mode] / 8 + kv_bytes(a, context, "fp16") + 2 * state_bytes(a))
    dram_cycles = read / (accelerator.read_bandwidth * 1e9) * accelerator.clock_megahertz * 1e6
    product = accelerator.draft_multiply_add_picojoules if mode == "draft" else accelerator.full_multiply_add_picojoules
    work = num_tokens * (multiplied_weights(a) * product + attention * accelerator.full_multiply_add_picojoules)
    return AcceleratorPass(
        mode=mode,
        num_tokens=num_tokens,
        num_passes=num_passes,
        compute_cycles=cycles,
        dram_cycles=dram_cycles,
        dram_bytes=read,
        seconds=max(cycles, dram_cycles) / (accelerator.clock_megahertz * 1e6),
        dram_joules=read * 8 * accelerator.dram_picojoules_per_bit * 1e-12,
        buffer_joules=2 * read * accelerator.sram_picojoules_per_byte * 1e-12,  # into the buffer, and out of it
        array_joules=work * 1e-12,
    )


@dataclass(frozen=True)
class Comparison:
    """Speculation against plain FP16 decoding and 8-bit designs; seconds and joules are those of a token."""

    plain: AcceleratorPass
    draft: AcceleratorPass
    verify: AcceleratorPass
    draft_ratio: float  # Td / Tar
    verify_ratio: float  # Tv / Tar
    tokens_per_round: float
    seconds: float
    joules: float
    speedup: float
    energy_efficiency: float
    speedup_over_olive: float
    speedup_over_tender: float


def compare(
    accelerator: Accelerator, a: ModelSizes, acceptance: float, num_draft_tokens: float, context: int = 1024
) -> Comparison:
    """Compare plain with speculative decoding of one sequence.

    Args:
        acceptance: probability that a draft token is accepted.
        num_draft_tokens: drafted a round, the mean under early exit.
        context: positions in the cache.

    Raises:
        MxconvError: acceptance outside [0, 1], or a length out of range.
    """
    tokens = expected_tokens(acceptance, num_draft_tokens)
    plain = run_pass(accelerator, a, "full", 1, context)
    draft = run_pass(accelerator, a, "draft", 1, context)
    verify = run_pass(accelerator, a, "full", num_draft_tokens + 1, context)
    seconds = (num_draft_tokens * draft.seconds + verify.seconds) / tokens
    joules = (num_draft_tokens * draft.joules + verify.joules) / tokens
    return Comparison(
        plain=plain,
        draft=draft,
        verify=verify,
        draft_ratio=draft.seconds / plain.seconds,
        verify_ratio=verify.seconds / plain.seconds,
        tokens_per_round=tokens,
        seconds=seconds,
        joules=joules,
        speedup=plain.seconds / seconds,
        energy_efficiency=plain.joules / joules,
        speedup_over_olive=run_pass(accelerator, a, "olive", 1, context).seconds / seconds,
        speedup_over_tender=run_pass(accelerator, a, "tender", 1, context).seconds / seconds,
    )
