"""Throughput multipliers of spire_report.py: measured tokens a round in the model of arXiv 2504.06419, section 2.

Tokens a round of the middle context stand for all contexts, as in section 4 there. Every draft is modelled at the sizes
of the paper's models and, once, at those that were measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokens_a_round import Rate

from mxconv.cost.hardware import open_hardware
from mxconv.cost.throughput import (
    LLAMA_3_70B,
    SPIRE_TARGET,
    WINDOW_FRACTION,
    BatchedDraft,
    DecoderBody,
    throughput_multiplier,
)

PLAIN, NARROW, MAGICDEC, SPIRE = "vanilla, 1 layer", "vanilla, half as wide", "MagicDec", "SPIRe"
DRAFTS = (PLAIN, NARROW, MAGICDEC, SPIRE)
DENSE = "no sparse cache"
BLOCK, SINK, WINDOW = 4, 1, 64
PLACES = ((1, 512), (16, 512), (64, 256), (64, 512), (64, 960), (256, 512))  # (batch, context)
PLACE_70B = (64, 65_536)
CURVE_CONTEXTS, CURVE_BATCH = [2**power for power in range(5, 15)], 64
HARDWARE, FORM = "h100-sxm", "int8"  # as `mxconv cost` reproduces the paper's figures: values of one byte


@dataclass(frozen=True)
class Report:
    """What was measured.

    Args:
        bodies: sizes of the target, "target", and of the drafts that were trained.
        target_loss: nats a token of the held-out text.
        num_prompts: of each measurement.
        rates: of each context and draft.
        middle: of the contexts, the one of which ablations and multipliers are.
        ablations: of SPIRe and of what it is without each of its parts.
    """

    bodies: dict[str, DecoderBody]
    target_loss: float
    num_prompts: int
    rates: dict[int, dict[str, Rate]]
    middle: int
    ablations: dict[str, Rate]

    @property
    def tokens_a_round(self) -> dict[str, float]:
        """Of all drafts, behind the middle context."""
        return {name: found.mean for name, found in (self.rates[self.middle] | self.ablations).items()}


def half_as_wide(body: DecoderBody) -> DecoderBody:
    """With half the layers: an eighth of the weights, as the paper's vanilla draft is of its target."""
    return replace(
        body.with_layers(1 / 2),
        hidden_size=body.hidden_size // 2,
        head_dim=body.head_dim // 2,
        intermediate_size=body.intermediate_size // 2,
    )


def intensity() -> float:
    """FLOPs a byte."""
    return open_hardware(HARDWARE).intensity(FORM)


def published_drafts(target: DecoderBody, rates: Mapping[str, float]) -> dict[str, BatchedDraft]:
    """At the sizes of the paper's models, with other tokens a round: its own window, an eighth of the context."""
    made = {
        PLAIN: BatchedDraft(target.with_layers(1 / 8), rates[PLAIN]),
        NARROW: BatchedDraft(half_as_wide(target), rates[NARROW]),
        MAGICDEC: BatchedDraft(target, rates[MAGICDEC], WINDOW_FRACTION, SINK),
        SPIRE: BatchedDraft(target.with_layers(1 / 4), rates[SPIRE], WINDOW_FRACTION, SINK, projects_memory=True),
    }
    made[DENSE] = replace(made[SPIRE], window_fraction=None)
    others = (name for name in rates if name not in made)  # of SPIRe's size, however they were trained
    return made | {name: replace(made[SPIRE], tokens_per_round=rates[name]) for name in others}


def own_drafts(report: Report) -> dict[str, BatchedDraft]:
    """At the sizes that were measured."""
    bodies, rates = report.bodies, report.tokens_a_round
    window = (WINDOW + 0.5) / report.middle  # half a position more: the model rounds down
    return {
        PLAIN: BatchedDraft(bodies[PLAIN], rates[PLAIN]),
        NARROW: BatchedDraft(bodies[NARROW], rates[NARROW]),
        MAGICDEC: BatchedDraft(bodies["target"], rates[MAGICDEC], window, SINK),
        SPIRE: BatchedDraft(bodies[SPIRE], rates[SPIRE], window, SINK, projects_memory=True),
    }


def multipliers(report: Report) -> dict[str, dict[str, float]]:
    """Of each draft by where it is modelled."""
    models = [("67 M", SPIRE_TARGET, published_drafts(SPIRE_TARGET, report.tokens_a_round), *place) for place in PLACES]
    models.append(("Llama 3 70B", LLAMA_3_70B, published_drafts(LLAMA_3_70B, report.tokens_a_round), *PLACE_70B))
    models.append(("this target", report.bodies["target"], own_drafts(report), CURVE_BATCH, report.middle))
    return {
        f"{name}, batch {batch}, context {context}": {
            draft: throughput_multiplier(target, sizes, batch, context, BLOCK, intensity())
            for draft, sizes in drafts.items()
        }
        for name, target, drafts, batch, context in models
    }


def curves(report: Report) -> dict[str, list[float]]:
    """Fig. 5: of the ablations, over the context, at the sizes of the paper's target."""
    drafts = published_drafts(SPIRE_TARGET, report.tokens_a_round)
    return {
        name: [
            throughput_multiplier(SPIRE_TARGET, drafts[name], CURVE_BATCH, context, BLOCK, intensity())
            for context in CURVE_CONTEXTS
        ]
        for name in report.ablations
    }
