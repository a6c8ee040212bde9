"""Tensor names of GGUF and of Hugging Face checkpoints.

Source:
    the tables MODEL_TENSORS and TENSOR_NAMES of the gguf library, as far as llama, mistral, qwen2 and qwen3 go.
"""

import re

ROPE_FACTORS = "rope_freqs.weight"
EMBEDDING = "token_embd.weight"
HEAD = "output.weight"

_OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_FROM_OUTSIDE = {theirs: ours for ours, theirs in _OUTSIDE.items()}
_FROM_LAYER = {theirs: ours for ours, theirs in _IN_LAYER.items()}
_GGUF_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)", re.ASCII)


def from_gguf(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor; None where it has none."""
    module, _, parameter = name.rpartition(".")
    if parameter not in ("weight", "bias"):
        return None
    if found := _GGUF_LAYER.fullmatch(module):
        kind = _FROM_LAYER.get(found[2])
        return kind and f"model.layers.{int(found[1])}.{kind}.{parameter}"
    outside = _FROM_OUTSIDE.get(module)
    return outside and f"{outside}.{parameter}"


def has_paired_rows(architecture: str, gguf_name: str) -> bool:
    """Whether GGUF stores the two rows that RoPE rotates as a pair side by side; see `rope_rows.py`."""
    return architecture == "llama" and gguf_name.rpartition(".")[0].endswith((".attn_q", ".attn_k"))
