"""Tiny random models for the export to GGUF, with byte-level tokenizers as such models have."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import TINY_LLAMA, llama_tensors, write_safetensors
from ml_dtypes import bfloat16

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {  # as in the tokenizer.json files of Llama 3 and Qwen 2
    "llama-bpe": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL,
    "qwen2": CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, llama3 scaling": {"rope_scaling": LLAMA3, "rope_theta": 1000.0},
    "qwen2": {"model_type": "qwen2", "rope_theta": 1e6},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "tie_word_embeddings": True},
}
TEXTS = [
    "Hello world  foo\n\tbar 12345 don't",
    " leading and trailing ",
    "x = [1, 2]\n\n\n    return 'IT\\'S' + \"don't\"",
    "Émigré ☃ 你好",
    "<|end|>and",
]


def write_model(folder: Path, seed: int = 0, dtype: str = "BF16", **changes: Any) -> Path:
    """A whole model folder; its tokenizer cuts text as the architecture's models do."""
    config = TINY_LLAMA | {"vocab_size": 320, "max_position_embeddings": 256, "bos_token_id": 300} | changes
    config["eos_token_id"] = 301
    folder.mkdir(parents=True)
    tensors = {name: array.astype(np.float32) for name, array in llama_tensors(config, "F32", seed).items()}
    tensors |= _further_tensors(config, np.random.default_rng(seed + 1))
    types = {"BF16": bfloat16, "F16": np.float16, "F32": np.float32}
    cast = {name: array.astype(types[dtype]) for name, array in tensors.items()}
    write_safetensors(folder / "model.safetensors", cast, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_level_tokenizer(folder, "qwen2" if config["model_type"].startswith("qwen") else "llama-bpe")
    return folder


def _further_tensors(config: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """What the architecture has and `llama_tensors` does not, and matrices of other head lengths; norms that matter."""
    hidden = config["hidden_size"]
    head_dim = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = head_dim * config["num_attention_heads"], head_dim * config["num_key_value_heads"]
    found: dict[str, Any] = {"model.norm.weight": 1 + 0.3 * rng.standard_normal(hidden)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"{name}{norm}.weight"] = 1 + 0.3 * rng.standard_normal(hidden)
        shapes = {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, q)}
        for kind, shape in shapes.items():
            found[f"{name}self_attn.{kind}.weight"] = rng.standard_normal(shape) / np.sqrt(hidden)
            if config["model_type"] == "qwen2" and kind != "o_proj":
                found[f"{name}self_attn.{kind}.bias"] = 0.3 * rng.standard_normal(shape[0])
        if config["model_type"] == "qwen3":
            for kind in ("q_norm", "k_norm"):
                found[f"{name}self_attn.{kind}.weight"] = 1 + 0.3 * rng.standard_normal(head_dim)
    return found


def write_byte_level_tokenizer(folder: Path, name: str) -> None:
    """256 bytes, 44 merges learned from this file, and added tokens from id 300 on; `name` as llama.cpp calls it."""
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    cut = pre_tokenizers.Split(Regex(PATTERNS[name]), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    assert tokenizer.get_vocab_size() == 300
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    if name == "llama-bpe":
        tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", 300)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "chat_template": "{{ messages[0]['content'] }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 300, "eos_token_id": [301, 0]}))
