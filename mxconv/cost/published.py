"""Published numbers beside ours. `python -m mxconv.cost.published` prints the table of docs/cost.md."""

from collections.abc import Iterator
from dataclasses import dataclass

from mxconv.cost.accelerator.comparison import compare
from mxconv.cost.accelerator.machine import Machine
from mxconv.cost.architecture import Architecture
from mxconv.cost.counts import active_parameters, count_parameters
from mxconv.cost.hardware import open_hardware
from mxconv.cost.throughput import (
    LLAMA_3_70B,
    SPIRE_DRAFT_TOKENS,
    SPIRE_DRAFTS,
    SPIRE_TARGET,
    SPIRE_VANILLA,
    throughput_multiplier,
    units_saved,
)
from mxconv.model.fields import Fields

BATCH = 64
SPIRE_TRAINING_UNITS = 0.25
SPEQ_ACCEPTANCE, SPEQ_DRAFT_TOKENS, SPEQ_CONTEXT = 0.974, 5.31, 1024

LLAMA_3_1_8B: dict[str, object] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip
MIXTRAL_8X7B: dict[str, object] = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
QWEN3_30B_A3B: dict[str, object] = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}  # fmt: skip
GPT_OSS_20B: dict[str, object] = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 32, "num_experts_per_tok": 4,
}  # fmt: skip
GPT_OSS_120B = GPT_OSS_20B | {"num_hidden_layers": 36, "num_local_experts": 128}


@dataclass(frozen=True)
class Row:
    """One number. `is_fitted` marks those whose model was fitted to what it is compared with."""

    source: str
    what: str
    published: float
    ours: float
    digits: int
    is_fitted: bool = False

    @property
    def error(self) -> float:
        return self.ours / self.published - 1


def published_rows() -> Iterator[Row]:
    """Every published number that the models can be asked for."""
    yield from _counts()
    yield from _spire()
    yield from _speq()


def markdown() -> str:
    """The table of docs/cost.md."""
    lines = ["| source | number | published | ours | error |", "|---|---|---|---|---|"]
    for row in published_rows():
        note = " (fitted)" if row.is_fitted else ""
        figures = f"{row.published:,.{row.digits}f} | {row.ours:,.{row.digits}f} | {row.error:+.1%}{note}"
        lines.append(f"| {row.source} | {row.what} | {figures} |")
    return "\n".join(lines) + "\n"


def _counts() -> Iterator[Row]:
    for name, config, total, active, with_embedding in (
        ("Llama 3.1 8B", LLAMA_3_1_8B, 8.03, None, False),
        ("Mixtral 8x7B", MIXTRAL_8X7B, 46.7, 12.9, True),
        ("Qwen3-30B-A3B", QWEN3_30B_A3B, 30.5, 3.3, True),
        ("gpt-oss-20b", GPT_OSS_20B, 20.91, 3.61, False),
        ("gpt-oss-120b", GPT_OSS_120B, 116.83, 5.13, False),
    ):
        architecture = Architecture.from_fields(Fields(config, name))
        parameters = count_parameters(architecture)
        card = f"{name}, model card"
        yield Row(card, "parameters, 10^9", total, parameters.total / 1e9, 2)
        if active is not None:
            used = active_parameters(architecture) + parameters.embedding * with_embedding
            yield Row(card, "active parameters, 10^9", active, used / 1e9, 2)


def _spire() -> Iterator[Row]:
    bodies = {"target": (SPIRE_TARGET, 67_117_056), "vanilla draft": (SPIRE_VANILLA, 8_390_656)}
    bodies["SPIRe draft"] = SPIRE_TARGET.with_layers(1 / 4), 16_779_264
    for name, (body, count) in bodies.items():
        yield Row("SPIRe, appendix", f"body parameters of the {name}", count, body.num_parameters, 0)
    intensity = open_hardware("h100-sxm").intensity("int8")
    small = {"vanilla": 1.36, "MagicDec": 2.05, "SPIRe": 2.78}
    large = {"MagicDec": 2.14, "SPIRe": 2.82}
    found = {}
    for label, place, target, context, multipliers in (
        ("67 M", "Fig. 4", SPIRE_TARGET, 512, small),
        ("Llama 3 70B", "Fig. 6 and appendix", LLAMA_3_70B, 65536, large),
    ):
        for name, published in multipliers.items():
            draft = SPIRE_DRAFTS[name](target)
            ours = throughput_multiplier(target, draft, BATCH, context, SPIRE_DRAFT_TOKENS, intensity)
            found[label, name] = ours
            yield Row(
                f"SPIRe, {place}", f"throughput, {label}, batch 64, context {context:,}, {name}", published, ours, 2
            )
    cost = "SPIRe, Cost Analysis"
    for label, name, training, published in (
        ("67 M", "SPIRe", 0.0, 6.40),
        ("67 M", "MagicDec", 0.0, 5.12),
        ("67 M", "SPIRe", SPIRE_TRAINING_UNITS, 6.15),
        ("Llama 3 70B", "SPIRe", 0.0, 6.45),
        ("Llama 3 70B", "MagicDec", 0.0, 5.33),
        ("Llama 3 70B", "SPIRe", SPIRE_TRAINING_UNITS, 6.20),
    ):
        what = f"units saved of 10, {label}, {name}{', less training' if training else ''}"
        yield Row(cost, what, published, units_saved(found[label, name], training_units=training), 2)


def _speq() -> Iterator[Row]:
    """One of SPEQ's fifteen entries, Llama 3.1 8B at a length of 5.31 and a rate of 0.974, against published means."""
    hardware = open_hardware("speq-28nm")
    architecture = Architecture.from_fields(Fields(LLAMA_3_1_8B, "Llama 3.1 8B"))
    found = compare(Machine.of(hardware), architecture, SPEQ_ACCEPTANCE, SPEQ_DRAFT_TOKENS, SPEQ_CONTEXT)
    yield Row("SPEQ, Tables II and III", "Td/Tar (fitted to their fifteen entries)", 0.357, found.draft_ratio, 3)
    yield Row("SPEQ, abstract", "speed-up over FP16, mean of fifteen", 2.07, found.speedup, 2)
    yield Row("SPEQ, abstract", "speed-up over Olive, mean", 1.53, found.speedup_over_olive, 2, is_fitted=True)
    yield Row("SPEQ, abstract", "speed-up over Tender, mean", 1.45, found.speedup_over_tender, 2, is_fitted=True)
    yield Row("SPEQ", "energy efficiency over FP16, mean", 1.74, found.energy_efficiency, 2)


if __name__ == "__main__":
    print(markdown(), end="")
