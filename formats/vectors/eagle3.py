"""Write the vectors of EAGLE-3 draft heads: `python formats/vectors/eagle3.py [FOLDER]` (default: eagle3/ beside this).

They come from the model of the `speculators` package itself, so this script is not part of `generate.py`: it was run
under Python 3.11 with speculators 0.9.0, transformers 5.19.0, torch 2.13.0 (CPU) and NumPy 2.4.6, in an environment of
its own, since the package limits the version of transformers. Nothing of mxconv is imported.

Of each case a folder: config.json and model.safetensors as the package saves a head, weights rounded to F16, and
expected.safetensors, all float32 but the tokens:

    states   (num_states, n, target hidden size)   of the target, in the order of the layer ids
    tokens   (n,) int64                            the text
    hidden   (steps, n - 1, hidden size)           what the last layer gives
    logits   (steps, n - 1, draft_vocab_size)

Row i of step 0 stands behind tokens 0..i+1 and has read the states of tokens 0..i. Row i of step s has gone on by the
tokens i+2..i+1+s, with its own hidden states as features. Where that runs beyond the text the row is cut off: NaN.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

NUM_TOKENS = 10
STEPS = 3

LAYER = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# the layer's configuration, the head's
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (
        LlamaConfig(**LAYER, head_dim=8, rope_parameters=LLAMA3),
        {"draft_vocab_size": 25, "eagle_aux_hidden_state_layer_ids": [1, 3, 4]},
    ),
    "norm-before-residual": (
        LlamaConfig(**LAYER, attention_bias=True),
        {"draft_vocab_size": 25, "norm_before_residual": True},
    ),
    "qwen3": (
        Qwen3Config(**(LAYER | {"num_hidden_layers": 2}), head_dim=12, attention_bias=False),
        {"draft_vocab_size": 60, "norm_output": True, "fc_norm": True, "eagle_aux_hidden_state_layer_ids": [3, 1]},
    ),
    "norm-before-fc": (
        Qwen3Config(**LAYER, head_dim=8),
        {"draft_vocab_size": 25, "norm_before_residual": True, "norm_before_fc": True},
    ),
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "eagle3"
    for seed, (name, (layer, changes)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        write(folder / name, layer, changes)


def write(folder: Path, layer: Any, changes: dict[str, Any]) -> None:
    layer._attn_implementation = "eager"
    method = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )
    config = Eagle3SpeculatorConfig(transformer_layer_config=layer, speculators_config=method, **changes)
    model = Eagle3DraftModel(config).eval()
    fill(model)
    if config.draft_vocab_size != layer.vocab_size:
        known = torch.randperm(layer.vocab_size)[: config.draft_vocab_size].sort().values
        marks = torch.zeros(layer.vocab_size, dtype=torch.bool)
        marks[known] = True
        model.load_vocab_mappings(marks, known - torch.arange(config.draft_vocab_size))
    copy.deepcopy(model).half().save_pretrained(folder)  # a copy: frequencies of RoPE are rounded too
    (folder / "config.py").unlink()  # of the package; no part of a head
    states = torch.randn(len(config.eagle_aux_hidden_state_layer_ids or range(3)), NUM_TOKENS, layer.hidden_size)
    tokens = torch.randint(layer.vocab_size, (NUM_TOKENS,))
    hidden, logits = run(model, states, tokens)
    expected = {"states": states, "tokens": tokens, "hidden": hidden, "logits": logits}
    save_file(expected, folder / "expected.safetensors")
    assert not any(tensor.isnan().any() for tensor in load_file(folder / "model.safetensors").values())


def fill(model: Eagle3DraftModel) -> None:
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim == 1:
            values = noise / 4 + (0 if name.endswith("bias") else 1)
        else:
            values = 2 * noise if "embed_tokens" in name else noise / parameter.shape[1] ** 0.5
        parameter.data = values.half().float()


@torch.no_grad()
def run(model: Eagle3DraftModel, states: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden: list[torch.Tensor] = []
    logits: list[torch.Tensor] = []
    model.layers[-1].register_forward_hook(lambda _, __, given: hidden.append(given[0].clone()))
    model.lm_head.register_forward_hook(lambda _, __, given: logits.append(given[0].clone()))
    features = torch.cat(list(states), dim=-1)[None, :-1]
    model(features, tokens[None, 1:], torch.zeros(1, NUM_TOKENS - 1, dtype=torch.long), ttt_steps=STEPS)
    for step in range(STEPS):
        for made in (hidden, logits):
            made[step][NUM_TOKENS - 1 - step :] = torch.nan
    return torch.stack(hidden), torch.stack(logits)


if __name__ == "__main__":
    main()
