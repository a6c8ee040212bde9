"""What SPEQ's machine is made of."""

from dataclasses import dataclass, fields

from mxconv.cost.hardware import Hardware
from mxconv.errors import MxconvError


@dataclass(frozen=True)
class Machine:
    """Sizes and energies; the units are in the names. A hardware description's [accelerator] table has the same keys.

    A tile works on one token; all tiles receive the same weights in a cycle. So up to `num_tiles` tokens take as
    long as one, which is what makes verification cost one pass.
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
    olive_weights_per_cycle: float  # 8-bit machines of as many elements
    tender_weights_per_cycle: float
    read_bandwidth: float  # GB/s of DRAM

    @classmethod
    def of(cls, hardware: Hardware) -> "Machine":
        """Raises MxconvError where the description has no such machine, or not all of it."""
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
