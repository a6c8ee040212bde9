"""Sizes of the models that papers and model cards speak of, and parameters as the cards state them."""

from collections.abc import Iterator

from published.claim import Claim

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.counts import active_parameters, count_parameters

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
LLAMA_2_7B: dict[str, object] = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA_2_13B = LLAMA_2_7B | {
    "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 40,
}  # fmt: skip
LLAMA_3_2_3B = LLAMA_3_1_8B | {
    "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
    "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
CODELLAMA_13B = LLAMA_2_13B | {"vocab_size": 32016, "max_position_embeddings": 16384}
CARDS = (  # billions: all, active; and whether the card counts the embedding as active
    ("Llama 3.1 8B", LLAMA_3_1_8B, 8.03, None, False),
    ("Mixtral 8x7B", MIXTRAL_8X7B, 46.7, 12.9, True),
    ("Qwen3-30B-A3B", QWEN3_30B_A3B, 30.5, 3.3, True),
    ("gpt-oss-20b", GPT_OSS_20B, 20.91, 3.61, False),
    ("gpt-oss-120b", GPT_OSS_120B, 116.83, 5.13, False),
)


def claims() -> Iterator[Claim]:
    """Parameters of each card."""
    for name, config, total, active, with_embedding in CARDS:
        architecture = ModelSizes.from_fields(Fields(config, name))
        parameters = count_parameters(architecture)
        yield Claim(f"{name}, parameters, 10^9", total, parameters.total / 1e9)
        if active is not None:
            used = active_parameters(architecture) + parameters.embedding * with_embedding
            yield Claim(f"{name}, active parameters, 10^9", active, used / 1e9)
