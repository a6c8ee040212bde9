"""SPIRe (arXiv 2504.06419): modelled throughput and the cost of training."""

from collections.abc import Iterator

from mxconv.cost.hardware import open_hardware
from mxconv.cost.published.row import Row, Section
from mxconv.cost.throughput import (
    LLAMA_3_70B,
    SPIRE_DRAFT_TOKENS,
    SPIRE_DRAFTS,
    SPIRE_TARGET,
    SPIRE_VANILLA,
    throughput_multiplier,
    units_saved,
)

BATCH = 64
TRAINING_UNITS = 0.25
BODIES = (
    ("target", SPIRE_TARGET, 67_117_056),
    ("vanilla draft", SPIRE_VANILLA, 8_390_656),
    ("SPIRe draft", SPIRE_TARGET.with_layers(1 / 4), 16_779_264),
)
THROUGHPUT = (
    ("67 M", SPIRE_TARGET, 512, {"vanilla": 1.36, "MagicDec": 2.05, "SPIRe": 2.78}),
    ("Llama 3 70B", LLAMA_3_70B, 65536, {"MagicDec": 2.14, "SPIRe": 2.82}),
)
UNITS_SAVED = (
    ("67 M", "SPIRe", 0.0, 6.40),
    ("67 M", "MagicDec", 0.0, 5.12),
    ("67 M", "SPIRe", TRAINING_UNITS, 6.15),
    ("Llama 3 70B", "SPIRe", 0.0, 6.45),
    ("Llama 3 70B", "MagicDec", 0.0, 5.33),
    ("Llama 3 70B", "SPIRe", TRAINING_UNITS, 6.20),
)


def sections() -> Iterator[Section]:
    rows = [Row(f"body parameters of the {name}", count, body.num_parameters, 0) for name, body, count in BODIES]
    intensity = open_hardware("h100-sxm").intensity("int8")
    found = {}
    for label, target, context, multipliers in THROUGHPUT:
        for name, published in multipliers.items():
            draft = SPIRE_DRAFTS[name](target)
            ours = throughput_multiplier(target, draft, BATCH, context, SPIRE_DRAFT_TOKENS, intensity)
            found[label, name] = ours
            rows.append(Row(f"throughput, {label}, batch 64, context {context:,}, {name}", published, ours))
    for label, name, training, published in UNITS_SAVED:
        what = f"units saved of 10, {label}, {name}{', less training' if training else ''}"
        rows.append(Row(what, published, units_saved(found[label, name], training_units=training)))
    note = "From its equation, its appendix and Table 1. Vanilla's 1.36 stands in the picture alone."
    yield Section("SPIRe: Figs. 4 and 6, appendix, Cost Analysis", rows, note)
