"""Write the vectors of P-EAGLE heads: `python formats/vectors/p_eagle.py [FOLDER]` (default: p-eagle/ beside this).

They come from the model of the `speculators` package itself, in the environment that `eagle3.py` names, whose folders
these are like. Of each case expected.safetensors holds, all float32 but the tokens:

    states   (num_states, n, target hidden size)    of the target, in the order of the layer ids
    tokens   (n,) int64                             the text
    logits   (n - 1, depths, draft_vocab_size)      NaN where a depth runs beyond the text

Row d of place i is behind tokens 0..i+1 and d masks, and has read the states of tokens 0..i.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import speculators.models.peagle.core as core
import torch
from eagle3 import LAYER, fill
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config

NUM_TOKENS, DEPTHS = 9, 4

# the layer's configuration, the head's
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama": (
        LlamaConfig(**LAYER, head_dim=8),
        {"draft_vocab_size": 25, "eagle_aux_hidden_state_layer_ids": [3, 1, 4], "norm_before_fc": True},
    ),
    "qwen3": (
        Qwen3Config(**(LAYER | {"num_hidden_layers": 2}), head_dim=12, attention_bias=False),
        {
            "draft_vocab_size": 60,
            "norm_before_residual": True,
            "fc_norm": True,
            "eagle_aux_hidden_state_layer_ids": [2, 3],
        },
    ),
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "p-eagle"
    for seed, (name, (layer, changes)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        write(folder / name, layer, changes)


def write(folder: Path, layer: Any, changes: dict[str, Any]) -> None:
    layer._attn_implementation = "eager"
    method = SpeculatorsConfig(
        algorithm="peagle",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DEPTHS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layer, speculators_config=method, mask_token_id=7, **changes
    )
    model = PEagleDraftModel(config).eval()
    fill(model)
    if config.draft_vocab_size != layer.vocab_size:
        known = torch.randperm(layer.vocab_size)[: config.draft_vocab_size].sort().values
        marks = torch.zeros(layer.vocab_size, dtype=torch.bool)
        marks[known] = True
        model.load_vocab_mappings(marks, known - torch.arange(config.draft_vocab_size))
    copy.deepcopy(model).half().save_pretrained(folder)  # a copy: frequencies of RoPE are rounded too
    (folder / "config.py").unlink(missing_ok=True)  # of the package; no part of a head
    states = torch.randn(len(changes["eagle_aux_hidden_state_layer_ids"]), NUM_TOKENS, layer.hidden_size)
    tokens = torch.randint(layer.vocab_size, (NUM_TOKENS,))
    save_file(
        {"states": states, "tokens": tokens, "logits": run(model, states, tokens)}, folder / "expected.safetensors"
    )


@torch.no_grad()
def run(model: PEagleDraftModel, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Every depth after every place that has room for it, in place of the random ones of a training."""
    places = [(place, depth) for depth in range(DEPTHS) for place in range(NUM_TOKENS - 1 - depth)]
    anchors, depths = torch.tensor(places).T
    given: list[torch.Tensor] = []
    core.generate_cod_sample_indices = lambda **_: (anchors, depths)
    core.compute_metrics = lambda logits, **_: (given.append(logits), {})
    num_rows = NUM_TOKENS - 1
    model(
        torch.cat(list(states), dim=-1)[None, :-1],
        tokens[None, 1:],
        torch.zeros(1, num_rows, dtype=torch.long),
        verifier_last_hidden_states=torch.zeros(1, num_rows, model.hidden_size),
    )
    logits = torch.full((num_rows, DEPTHS, given[0].shape[-1]), torch.nan)
    logits[anchors, depths] = given[0][0]
    return logits


if __name__ == "__main__":
    main()
