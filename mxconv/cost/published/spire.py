"""SPIRe (arXiv 2504.06419): modelled throughput, the critical context and the cost of training."""

from collections.abc import Iterator
from dataclasses import replace

from mxconv.cost.hardware import open_hardware
from mxconv.cost.published.row import Kind, Row, Section
from mxconv.cost.throughput import (
    LLAMA_3_70B,
    SPIRE_DRAFT_TOKENS,
    SPIRE_DRAFTS,
    SPIRE_TARGET,
    SPIRE_VANILLA,
    critical_context,
    throughput_multiplier,
    units_saved,
)

BATCH = 64
WINDOW = 64  # positions, of MagicDec and SPIRe alike: section 4
TRAINING_UNITS = 0.25
SMALL, LARGE = "67 M", "Llama 3 70B"
THROUGHPUT = (
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
NOTE = (
    "From its equation and Table 1, at the intensity of an H100 in int8, which matters to the critical context alone. "
    "The text has the target's 8 layers and 67 million body parameters, and drafts of an eighth and a quarter of them; "
    "the other sizes are those of the appendix, whose tables are not in the text that was read here. Vanilla's 1.36 "
    "is read from a picture; the text says *over 100%*. Assumed for Llama 3 70B: a window that grows with the context, "
    "8,192 of 65,536 positions as 64 of 512. The text says a window of 64, which gives more than the published "
    "numbers. Assumed for the critical context: verification evaluates 4 tokens a sequence, the batch grows without "
    "limit, and the result is rounded down to a power of two."
)


def sections() -> Iterator[Section]:
    bodies = _bodies()
    throughput, found = _throughput()
    yield Section("SPIRe: Figs. 3, 4 and 6, Cost Analysis", [*bodies, *throughput, *_units(found), *_critical()], NOTE)


def _bodies() -> list[Row]:
    target = SPIRE_TARGET.num_parameters
    return [
        Row("body parameters of the target, 10^6", 67, target / 1e6, 0),
        Row("body parameters of the vanilla draft, of the target's", 1 / 8, SPIRE_VANILLA.num_parameters / target, 3),
        Row("body parameters of the SPIRe draft, of the target's", 1 / 4, _spire_share(), 3),
    ]


def _spire_share() -> float:
    return SPIRE_TARGET.with_layers(1 / 4).num_parameters / SPIRE_TARGET.num_parameters


def _throughput() -> tuple[list[Row], dict[tuple[str, str], float]]:
    """Rows, and the multipliers by model and draft."""
    intensity = _intensity()
    rows, found = [], {}
    for label, target, context, multipliers in THROUGHPUT:
        for name, published in multipliers.items():
            draft = SPIRE_DRAFTS[name](target)
            ours = throughput_multiplier(target, draft, BATCH, context, SPIRE_DRAFT_TOKENS, intensity)
            found[label, name] = ours
            what = f"throughput, {label}, batch 64, context {context:,}, {name}"
            if label == SMALL:
                rows.append(Row(what, published, ours))
                continue
            rows.append(Row(f"{what}, window of 8,192", published, ours, kind="assumed"))
            as_written = replace(draft, window_fraction=WINDOW / context)
            fixed = throughput_multiplier(target, as_written, BATCH, context, SPIRE_DRAFT_TOKENS, intensity)
            rows.append(Row(f"{what}, window of 64 as in the text", published, fixed))
    for name, percent in (("vanilla", 100), ("MagicDec", 35)):
        ours = 100 * (found[SMALL, "SPIRe"] / found[SMALL, name] - 1)
        rows.append(Row(f"throughput, {SMALL}, SPIRe over {name}, percent more: *over*", percent, ours, 0))
    return rows, found


def _units(found: dict[tuple[str, str], float]) -> Iterator[Row]:
    for label, name, training, published in UNITS_SAVED:
        what = f"units saved of 10, {label}, {name}{', less training' if training else ''}"
        kind: Kind = "derived" if label == SMALL else "assumed"
        yield Row(what, published, units_saved(found[label, name], training_units=training), kind=kind)


def _critical() -> Iterator[Row]:
    for label, target, published in CRITICAL:
        longest = critical_context(target, SPIRE_DRAFT_TOKENS, _intensity())
        power = 2 ** (int(longest).bit_length() - 1)
        yield Row(f"critical context, {label}, ours rounded from {longest:,.1f}", published, power, 0, "assumed")


def _intensity() -> float:
    return open_hardware("h100-sxm").intensity("int8")
