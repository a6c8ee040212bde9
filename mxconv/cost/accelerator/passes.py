"""Cycles, bytes and energy of one forward pass through SPEQ's machine.

    cycles  = passes * (weights / (elements * weights a cycle) + attention / elements)      elements: of one tile
    seconds = max(cycles / clock, DRAM bytes / bandwidth)
    energy  = DRAM bits + weights and KV through the SRAM buffers + multiply-adds of every token

As SPEQ has it (arXiv 2510.18525, section IV): 8 tiles of 128 elements, one weight an element and cycle in full mode and
three in quantize mode, three buffers of 512 KB, 500 MHz. Assumed, since it does not say: a tile a token, weights
broadcast to all tiles; attention in FP16 at one multiply-add an element and cycle in both modes; the KV cache in FP16,
read once a pass; compute and DRAM overlap; leakage and the special function unit (norms, softmax) left out.
"""

from dataclasses import dataclass
from math import ceil
from typing import Literal

from mxconv.cost.accelerator.machine import Machine
from mxconv.cost.architecture import Architecture
from mxconv.cost.counts import BITS, attention_multiply_adds, kv_bytes, multiplied_weights, state_bytes
from mxconv.errors import MxconvError

Mode = Literal["full", "draft", "olive", "tender"]
MODE_BITS = {"full": BITS["fp16"], "draft": BITS["bsfp-draft"], "olive": BITS["int8"], "tender": BITS["int8"]}
ACTIVATION_BYTES = 2


@dataclass(frozen=True)
class AcceleratorPass:
    """One forward pass. Energies are in joules, by module; the units of the rest are in the names."""

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
    def joules(self) -> float:
        return self.dram_joules + self.buffer_joules + self.array_joules

    def watts(self) -> dict[str, float]:
        """Mean power by module."""
        modules = {"dram": self.dram_joules, "buffers": self.buffer_joules, "array": self.array_joules}
        return {name: joules / self.seconds for name, joules in modules.items()}


def tokens_at_once(machine: Machine, a: Architecture) -> int:
    """Tokens that one pass takes: a tile each, as far as the widest layer's input fits the activation buffer.

    Raises:
        MxconvError: not even one does.
    """
    widest = max(a.hidden_size, a.num_attention_heads * a.head_dim, a.expert_size, *a.dense_sizes)
    fitting = int(machine.buffer_kilobytes * 1024 // (widest * ACTIVATION_BYTES))
    if fitting < 1:
        raise MxconvError(
            f"accelerator: a layer's input of {widest:,} values; at most {machine.buffer_kilobytes:g} KB fit the "
            "activation buffer. Describe a machine with a larger one."
        )
    return min(int(machine.num_tiles), fitting)


def run_pass(
    machine: Machine, a: Architecture, mode: Mode, num_tokens: float = 1, context: int = 1024
) -> AcceleratorPass:
    """One pass over some tokens of one sequence.

    Args:
        mode: full reads FP16 weights, draft the 4-bit part and a scale for 128; olive and tender 8-bit weights.
        num_tokens: may be a mean.
        context: positions in the cache.
    """
    num_passes = max(ceil(num_tokens / tokens_at_once(machine, a)), 1)
    weights = multiplied_weights(a, num_tokens / num_passes)
    attention = attention_multiply_adds(a, context)
    rate: float = getattr(machine, f"{mode}_weights_per_cycle")
    cycles = num_passes * (weights / rate + attention) / machine.num_elements_per_tile
    read = num_passes * (weights * MODE_BITS[mode] / 8 + kv_bytes(a, context, "fp16") + 2 * state_bytes(a))
    dram_cycles = read / (machine.read_bandwidth * 1e9) * machine.clock_megahertz * 1e6
    product = machine.draft_multiply_add_picojoules if mode == "draft" else machine.full_multiply_add_picojoules
    work = num_tokens * (multiplied_weights(a) * product + attention * machine.full_multiply_add_picojoules)
    return AcceleratorPass(
        mode=mode,
        num_tokens=num_tokens,
        num_passes=num_passes,
        compute_cycles=cycles,
        dram_cycles=dram_cycles,
        dram_bytes=read,
        seconds=max(cycles, dram_cycles) / (machine.clock_megahertz * 1e6),
        dram_joules=read * 8 * machine.dram_picojoules_per_bit * 1e-12,
        buffer_joules=2 * read * machine.sram_picojoules_per_byte * 1e-12,  # into the buffer, and out of it
        array_joules=work * 1e-12,
    )
