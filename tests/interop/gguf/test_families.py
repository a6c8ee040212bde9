"""Every family in llama.cpp: it loads what is exported and has transformers' logits, or the export says what is missing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_models import write_byte_level_tokenizer
from llama_cpp_oracle import LlamaCpp, with_f32_matrices
from packages import quantize

from mxconv.errors import ModelError
from mxconv.interop.gguf_export import export_gguf

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
pytest.importorskip("llama_cpp", reason="make test builds llama-cpp-python")

NUM_TOKENS = 80
WIDE = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}  # rows that are whole blocks of MXFP4
SAME_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
WITHOUT_WINDOW = {"sliding_window": None}
GEMMA3 = {"query_pre_attn_scalar": 16}
YARN = checkpoints.YARN | {"beta_fast": 30.0, "beta_slow": 2.0}

# what a family's checkpoint is changed in so that llama.cpp has all of it
CHANGES: dict[str, dict[str, Any]] = {
    "mistral": WITHOUT_WINDOW,
    "qwen2": {"use_sliding_window": False},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": GEMMA3,
    "gemma3, of several towers": GEMMA3,
    "phi3": WITHOUT_WINDOW,
    "olmo3": {"tie_word_embeddings": True},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
    "ministral3": {"rope_parameters": checkpoints.MINISTRAL["rope_parameters"] | {"beta_slow": 2.0}},
    "seed_oss": {"attention_out_bias": False},
    "arcee": {"mlp_bias": False},
    "starcoder2": WITHOUT_WINDOW,
    "gpt_neox": {"hidden_act": "gelu_new"},
    "gpt_neox, one after the other": {"hidden_act": "gelu_new"},
}
REFUSED = {
    "smollm3, windows": "",
    "exaone4": "windows in a model of 4 layers, not 64, which llama.cpp's exaone4 does not have; GGUF can hold this",
}


@dataclass(frozen=True)
class Exported:
    """A package's files, and what transformers makes of some tokens."""

    package: Path
    folder: Path
    notes: tuple[str, ...]
    token_ids: list[int]
    expected: np.ndarray


def make(family: str, folder: Path, **changes: Any) -> Exported:
    import torch

    model = checkpoints.make_model(family, **(WIDE | {"vocab_size": 320} | CHANGES.get(family, {}) | changes))
    checkpoints.write_checkpoint(model, folder / "source")
    write_byte_level_tokenizer(folder / "source", "llama-bpe")
    token_ids = [int(token) for token in np.random.default_rng(7).integers(0, 300, NUM_TOKENS)]
    with torch.no_grad():
        expected = model(torch.tensor([token_ids])).logits[0].numpy()
    quantize(folder / "source", folder / "package")
    export = export_gguf(folder / "package", folder / "out")
    return Exported(folder / "package", folder / "out", export.notes, token_ids, expected)


def logits_of(path: Path, token_ids: list[int]) -> np.ndarray:
    """llama.cpp's, in float32, with room for a hundred tokens."""
    loaded = LlamaCpp(with_f32_matrices(path, path.with_name(f"f32-{path.name}")), 128)
    try:
        return loaded.logits(token_ids)
    finally:
        loaded.close()


@pytest.mark.parametrize("family", [name for name in checkpoints.FAMILIES if name not in REFUSED])
def test_llama_cpp_has_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    made = make(family, tmp_path)
    found = logits_of(made.folder / "out-BF16.gguf", made.token_ids)
    largest = np.abs(found - made.expected).max() / np.abs(made.expected).max()
    print(f"{family}: float32 logits differ by up to {largest:.1e} of the largest; {made.notes}")
    assert largest <= 1e-3
    assert (found.argmax(-1) == made.expected.argmax(-1)).all()
