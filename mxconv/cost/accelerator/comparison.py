"""Speculation on SPEQ's machine against plain FP16 decoding, and against the 8-bit machines Olive and Tender.

Olive (Guo et al., ISCA 2023) and Tender (Lee et al., ISCA 2024) are modelled as the same array with 8-bit weights and a
rate of their own. Those two rates are not derived: they are fitted to the published averages 2.07/1.53 and 2.07/1.45,
which say that the two are 1.35 and 1.43 times as fast as FP16 where their bytes would allow twice.
"""

from dataclasses import dataclass

from mxconv.cost.accelerator.machine import Machine
from mxconv.cost.accelerator.passes import AcceleratorPass, run_pass
from mxconv.cost.architecture import Architecture
from mxconv.cost.speedup import expected_tokens


@dataclass(frozen=True)
class Comparison:
    """Seconds and joules are a token; speed-ups and energy efficiency are those of speculation over the other."""

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
    machine: Machine, a: Architecture, acceptance: float, num_draft_tokens: float, context: int = 1024
) -> Comparison:
    """One sequence decoded plainly and speculatively.

    Args:
        acceptance: probability that a draft token is accepted.
        num_draft_tokens: drafted a round, the mean under early exit.
        context: positions in the cache.

    Raises:
        MxconvError: acceptance outside [0, 1], or a length out of range.
    """
    tokens = expected_tokens(acceptance, num_draft_tokens)
    plain = run_pass(machine, a, "full", 1, context)
    draft = run_pass(machine, a, "draft", 1, context)
    verify = run_pass(machine, a, "full", num_draft_tokens + 1, context)
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
        speedup_over_olive=run_pass(machine, a, "olive", 1, context).seconds / seconds,
        speedup_over_tender=run_pass(machine, a, "tender", 1, context).seconds / seconds,
    )
