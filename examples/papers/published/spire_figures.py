"""SPIRe (arXiv 2504.06419): modelled throughput, the critical context and the cost of training."""

from collections.abc import Iterator

from published.claim import Claim, Kind

from mxconv.cost.hardware import open_hardware
from mxconv.cost.throughput import (
    LLAMA_3_70B,
    SPIRE_DRAFT_TOKENS,
    SPIRE_DRAFTS,
    SPIRE_TARGET,
    SPIRE_VANILLA,
    WINDOW,
    BatchedDraft,
    DecoderBody,
    throughput_multiplier,
    units_saved,
)

LARGE_WINDOW = 8192  # positions of 65,536, as 64 are of 512: what the figures of Llama 3 70B follow from
TRAINING_UNITS = 0.25
SMALL, LARGE = "67 M", "Llama 3 70B"
THROUGHPUT = (  # batch 64
    (SMALL, SPIRE_TARGET, 512, {"vanilla": 1.36, "MagicDec": 2.05, "SPIRe": 2.78}),
    (LARGE, LLAMA_3_70B, 65536, {"MagicDec": 2.14, "SPIRe": 2.82}),
)
UNITS_SAVED = (
    (SMALL, "SPIRe", 0.0, 6.40),
    (SMALL, "MagicDec", 0.0, 5.12),
    (SMALL, "SPIRe", TRAINING_UNITS, 6.15),
    (LARGE, "SPIRe", 0.0, 6.45),
    (LARGE, "MagicDec", 0.0, 5.33),
    (LARGE, "SPIRe", TRAINING_UNITS, 6.20),
)
CRITICAL = ((SMALL, SPIRE_TARGET, 512 / 2**4), (LARGE, LLAMA_3_70B, 65536 / 2**4))  # "four powers of two" below: Fig. 3


def claims() -> Iterator[Claim]:
    """Figs. 3, 4 and 6 and the Cost Analysis: docs/research/published.md names the assumptions."""
    target, intensity = SPIRE_TARGET.num_parameters, open_hardware("h100-sxm").intensity("int8")
    yield Claim("body parameters of the target, 10^6", 67, target / 1e6, 0)
    for name, share, body in (("vanilla", 1 / 8, SPIRE_VANILLA), ("SPIRe", 1 / 4, SPIRE_TARGET.with_layers(1 / 4))):
        ours = body.num_parameters / target
        yield Claim(f"body parameters, {name}", share, ours, 3, group="body parameters of drafts, of the target's")

    def multiplier(target: DecoderBody, draft: BatchedDraft, context: int) -> float:
        return throughput_multiplier(target, draft, 64, context, SPIRE_DRAFT_TOKENS, intensity)

    found = {}
    for label, body, context, multipliers in THROUGHPUT:
        for name, published in multipliers.items():
            make, what = SPIRE_DRAFTS[name], f"throughput, {label}, batch 64, context {context:,}, {name}"
            as_written = found[label, name] = multiplier(body, make(body, WINDOW), context)
            if label == SMALL:
                yield Claim(what, published, as_written)
            else:
                ours = found[label, name] = multiplier(body, make(body, LARGE_WINDOW), context)
                yield Claim(f"{what}, window of 8,192", published, ours, kind="assumed")
                yield Claim(f"{what}, window of 64 as in the text", published, as_written)
    for label, name, training, published in UNITS_SAVED:
        what = f"units saved of 10, {label}, {name}{', less training' if training else ''}"
        ours = units_saved(found[label, name], training_units=training)
        kind: Kind = "derived" if label == SMALL else "assumed"
        yield Claim(what, published, ours, 2, kind, f"units saved of 10, {label}")
    for label, body, published in CRITICAL:
        kinds: dict[str, Kind] = {"k": "assumed", "k + 1": "derived"}
        for rows, (counted, kind) in enumerate(kinds.items(), SPIRE_DRAFT_TOKENS):
            longest = critical_context(body, rows, intensity)
            power = 2 ** (int(longest).bit_length() - 1)
            what = f"critical context, {label}, {counted} rows, ours rounded from {longest:,.1f}"
            yield Claim(what, published, power, 0, kind)


def critical_context(target: DecoderBody, num_rows: int, intensity: float) -> float:
    """The context beyond which verification is bound by memory at every batch size, in positions.

    With a growing batch the weights' bytes vanish beside the caches', and FLOPs and KV bytes grow alike.

    Args:
        num_rows: tokens of a sequence that a verification evaluates: k + 1 in the throughput multiplier. SPIRe's
            printed contexts follow from k, as its section 4.1 counts the rows of a batch of 64 (4 x 64 = 256).

    Source:
        SPIRe, Fig. 3.
    """
    return 2 * target.num_parameters * num_rows / (target.kv_bytes_per_position * intensity)
