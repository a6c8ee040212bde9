"""Parameters, as model cards state them."""

from collections.abc import Iterator

from mxconv.arch.fields import Fields
from mxconv.cost.architecture import Architecture
from mxconv.cost.counts import active_parameters, count_parameters
from mxconv.cost.published.architectures import GPT_OSS_20B, GPT_OSS_120B, LLAMA_3_1_8B, MIXTRAL_8X7B, QWEN3_30B_A3B
from mxconv.cost.published.row import Row, Section

CARDS = (  # billions: all, active; and whether the card counts the embedding as active
    ("Llama 3.1 8B", LLAMA_3_1_8B, 8.03, None, False),
    ("Mixtral 8x7B", MIXTRAL_8X7B, 46.7, 12.9, True),
    ("Qwen3-30B-A3B", QWEN3_30B_A3B, 30.5, 3.3, True),
    ("gpt-oss-20b", GPT_OSS_20B, 20.91, 3.61, False),
    ("gpt-oss-120b", GPT_OSS_120B, 116.83, 5.13, False),
)


def sections() -> Iterator[Section]:
    yield Section("Model cards: parameters", list(_rows()))


def _rows() -> Iterator[Row]:
    for name, config, total, active, with_embedding in CARDS:
        architecture = Architecture.from_fields(Fields(config, name))
        parameters = count_parameters(architecture)
        yield Row(f"{name}, parameters, 10^9", total, parameters.total / 1e9)
        if active is not None:
            used = active_parameters(architecture) + parameters.embedding * with_embedding
            yield Row(f"{name}, active parameters, 10^9", active, used / 1e9)
