"""SPEQ (arXiv 2510.18525): Tables II-IV, Figs. 2(a) and 8, section V-D, and the energy that follows from them."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from published.claim import Claim
from published.model_cards import LLAMA_2_7B, LLAMA_2_13B, LLAMA_3_1_8B, LLAMA_3_2_3B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.accelerator import Accelerator, Comparison, compare
from mxconv.cost.counts import count_pass
from mxconv.cost.hardware import open_hardware
from mxconv.cost.speedup import expected_tokens, speedup

MODELS = {
    "Vicuna-7b": LLAMA_2_7B,
    "Llama2-7b": LLAMA_2_7B,
    "Llama3.1-8b": LLAMA_3_1_8B,
    "Llama3.2-3b": LLAMA_3_2_3B,
    "Llama2-13b": LLAMA_2_13B,
}
# positions in the cache half-way through 256 new tokens; prompts at four characters a token, GSM8K with eight shots,
# MT-bench over both turns
CONTEXT = {"Humaneval": 113 + 128, "MT-bench": 216 + 128, "GSM8K": 1125 + 128}
FIG_2_CONTEXT = 1024 + 512  # prefill 1024, half of 1024 new tokens
QUANTIZE_MILLIWATTS, FULL_MILLIWATTS = 508.0, 559.0  # Table IV
EFFICIENCY = 1.74


@dataclass(frozen=True)
class Entry:
    """One of fifteen: Table II's mean draft length and acceptance, Table III's speed-up."""

    model: str
    task: str
    length: float
    acceptance: float
    speedup: float

    @property
    def name(self) -> str:
        return f"{self.model}, {self.task}"

    @property
    def tokens(self) -> float:
        """A round."""
        return expected_tokens(self.acceptance, self.length)

    @property
    def draft_ratio(self) -> float:
        """Td/Tar at which Eq. (2) gives the published speed-up."""
        return (self.tokens / self.speedup - 1) / self.length


ENTRIES = [
    Entry(model, task, *figures)
    for model, row in {
        "Vicuna-7b": ((8.02, 0.968, 2.05), (8.40, 0.964, 2.03), (7.48, 0.977, 2.12)),
        "Llama2-7b": ((6.05, 0.981, 2.11), (4.47, 0.986, 2.04), (6.38, 0.987, 2.16)),
        "Llama3.1-8b": ((5.10, 0.975, 2.01), (5.69, 0.979, 2.08), (5.31, 0.967, 2.00)),
        "Llama3.2-3b": ((5.61, 0.953, 1.93), (6.05, 0.978, 2.09), (4.83, 0.964, 1.96)),
        "Llama2-13b": ((5.80, 0.986, 2.13), (6.61, 0.992, 2.21), (6.57, 0.991, 2.19)),
    }.items()
    for task, figures in zip(CONTEXT, row, strict=True)
]


def claims() -> Iterator[Claim]:
    """Every table of the paper; docs/research/published.md names what is assumed."""
    for entry in ENTRIES:  # Table III from Table II and one Td/Tar
        others = mean(other.draft_ratio for other in ENTRIES if other is not entry)
        ours = speedup(entry.acceptance, entry.length, others)
        yield Claim(f"Table III, {entry.name}", entry.speedup, ours, group="Table III by Eq. (2), entries")
    for entry in ENTRIES:
        found = _compare(entry)
        what = f"{entry.name}, context {CONTEXT[entry.task]:,}, Td/Tar {found.draft_ratio:.3f}"
        ours = speedup(entry.acceptance, entry.length, found.draft_ratio)
        yield Claim(what, entry.speedup, ours, 2, "assumed", "Table III from the machine of section IV, entries")
    for model in ("Llama3.1-8b", "Llama2-13b", "Llama2-7b"):
        architecture = ModelSizes.from_fields(Fields(MODELS[model], model))
        count = count_pass(architecture, "fp16", context=FIG_2_CONTEXT, kv_dtype="fp16")
        share = count.weight_bytes / count.num_bytes
        yield Claim(f"Fig. 2(a), {model}", 0.988, share, 3, group="Fig. 2(a), weights, of the bytes read, models")
    for mode, milliwatts in (("draft", QUANTIZE_MILLIWATTS), ("plain", FULL_MILLIWATTS)):
        passes = [getattr(_compare(entry), mode) for entry in ENTRIES]
        buffers, array = (1000 * mean(each.watts()[part] for each in passes) for part in ("buffers", "array"))
        what = f"Table IV, mW of a {mode} pass; {buffers:,.0f} of ours are the buffers'"
        yield Claim(what, milliwatts, buffers + array, 0, "assumed")
    yield from _energy()


def _energy() -> Iterator[Claim]:
    mine = mean(table_efficiency(entry) for entry in ENTRIES)
    yield Claim("energy efficiency, mean of fifteen, from Tables II to IV", EFFICIENCY, mine)
    implied = FULL_MILLIWATTS * EFFICIENCY / mine
    yield Claim("power of plain decoding, mW; ours: what 1.74 implies", FULL_MILLIWATTS, implied, 0)
    machine = [_compare(entry) for entry in ENTRIES]
    counted = mean(found.energy_efficiency for found in machine)
    yield Claim("energy efficiency of our machine, DRAM counted", EFFICIENCY, counted, kind="assumed")
    on_chip = mean(
        found.plain.chip_joules
        * found.tokens_per_round
        / (entry.length * found.draft.chip_joules + found.verify.chip_joules)
        for entry, found in zip(ENTRIES, machine, strict=True)
    )
    yield Claim("the same, DRAM left out", EFFICIENCY, on_chip, kind="assumed")


def table_efficiency(entry: Entry) -> float:
    """Joules of plain decoding over those of speculation, a token, by Tables II to IV."""
    joules = entry.length * entry.draft_ratio * QUANTIZE_MILLIWATTS + FULL_MILLIWATTS
    return FULL_MILLIWATTS * entry.tokens / joules


def _compare(entry: Entry) -> Comparison:
    architecture = ModelSizes.from_fields(Fields(MODELS[entry.model], entry.model))
    machine = Accelerator.of(open_hardware("speq-28nm"))
    return compare(machine, architecture, entry.acceptance, entry.length, CONTEXT[entry.task])
