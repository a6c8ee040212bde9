"""Write the vectors of DFlash heads: `python formats/vectors/dflash.py [FOLDER]` (default: dflash/ beside).

They come from the models of the `speculators` package itself, so this script is not part of `generate.py`: it was run
under Python 3.11 with speculators 0.9.0, transformers 5.19.0, torch 2.13.0 (CPU) and NumPy 2.4.6, in an environment of
its own, since the package limits the version of transformers. Nothing of mxconv is imported.

Of each case a folder: config.json and model.safetensors as the package saves a head, weights rounded to F16, and
expected.safetensors, all float32 but the tokens:

    states      (num_states, n, hidden size)       of the target, in the order of the layer ids
    tokens      (n,) int64                         the text
    embedding   (vocab size, hidden size)          of the target, which the package leaves out of a head's file
    head        (vocab size, hidden size)          its output head, where the file has none
    logits      (n - block, block, draft vocab)    of the block that begins at each token but the last ones

Row k of block i has read the states of tokens before i.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import speculators.models.dflash.core as dflash_core
import torch
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.dflash import DFlashDraftModel, DFlashSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import Qwen3Config

NUM_TOKENS, BLOCK = 12, 4

LAYER = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
# the layers' configuration beyond LAYER, the head's
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dflash": ({"attention_bias": True}, {"draft_vocab_size": 60, "aux_hidden_state_layer_ids": [3, 1]}),
    "dflash-windows": (WINDOWS, {"draft_vocab_size": 25, "aux_hidden_state_layer_ids": [1, 3, 4]}),
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "dflash"
    for seed, (name, (layer, changes)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        write(folder / name, layer, changes)


def write(folder: Path, layer: dict[str, Any], changes: dict[str, Any]) -> None:
    layers = Qwen3Config(**(LAYER | layer))
    layers._attn_implementation = "eager"
    method = SpeculatorsConfig(
        algorithm="dflash",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=BLOCK - 1)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )
    own = {"transformer_layer_config": layers, "speculators_config": method, "block_size": BLOCK, "mask_token_id": 7}
    model = DFlashDraftModel(DFlashSpeculatorConfig(**own, **changes)).eval()
    fill(model)
    if changes["draft_vocab_size"] != layers.vocab_size:
        known = torch.randperm(layers.vocab_size)[: changes["draft_vocab_size"]].sort().values
        marks = torch.zeros(layers.vocab_size, dtype=torch.bool)
        marks[known] = True
        model.load_vocab_mappings(marks, known - torch.arange(len(known)))
    copy.deepcopy(model).half().save_pretrained(folder)  # a copy: frequencies of RoPE are rounded too
    (folder / "config.py").unlink(missing_ok=True)  # of the package; no part of a head
    states = torch.randn(len(changes["aux_hidden_state_layer_ids"]), NUM_TOKENS, layers.hidden_size)
    tokens = torch.randint(layers.vocab_size, (NUM_TOKENS,))
    expected = {"states": states, "tokens": tokens, "embedding": model.embed_tokens.weight.data.clone()}
    stored = load_file(folder / "model.safetensors")
    assert not any(tensor.isnan().any() for tensor in stored.values())
    if "lm_head.weight" not in stored:
        expected["head"] = model.lm_head.weight.data.clone()
    save_file(expected | run(model, states, tokens), folder / "expected.safetensors")


def fill(model: DFlashDraftModel) -> None:
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.ndim == 1:
            values = noise / 4 + (0 if name.endswith("bias") else 1)
        else:
            values = 2 * noise if "embed" in name else noise / parameter.shape[1] ** 0.5
        parameter.data = values.half().float()


@torch.no_grad()
def run(model: DFlashDraftModel, states: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the package computes its loss of; as many anchors as there can be are all of them, in their order."""
    given: list[torch.Tensor] = []

    def metrics(logits: torch.Tensor, targets: torch.Tensor, *others: Any, **options: Any) -> tuple[torch.Tensor, dict]:
        given.append(logits)
        return logits.sum(), {}

    dflash_core.compute_metrics = metrics
    model(
        torch.cat(list(states), dim=-1)[None],
        tokens[None],
        torch.ones(1, NUM_TOKENS),
        torch.zeros(1, NUM_TOKENS, model.hidden_size),
        torch.zeros(1, NUM_TOKENS, dtype=torch.long),
        max_anchors=NUM_TOKENS - BLOCK,
    )
    return {"logits": given[0].reshape(NUM_TOKENS - BLOCK, BLOCK, -1).clone()}


if __name__ == "__main__":
    main()
