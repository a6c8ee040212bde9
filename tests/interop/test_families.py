"""What surrounds a model, for families of every kind: what `inspect` and `cost` count, and what a model card says."""

from math import prod
from pathlib import Path

import pytest
from packages import quantize

from mxconv.arch.description import Attention, LatentAttention
from mxconv.arch.families.registry import describe_file
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.counts import count_parameters, kv_bytes, multiplied_weights, state_bytes
from mxconv.engine.cache import KVCache
from mxconv.interop.hub.card import SourceCard, model_card
from mxconv.report.inspection import inspect_weights
from mxconv.report.sources import open_weights

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")

KINDS = (  # families whose tensors, layers or states are counted in ways of their own
    "llama", "gemma3, of several towers", "gemma4", "gemma4, with experts", "phi3", "olmo2", "mimo", "cohere2",
    "gpt_neox", "gpt2", "mixtral", "granitemoe", "gpt_oss", "llama4", "deepseek_v3", "glm4_moe", "qwen2_moe", "lfm2",
    "mamba2", "granitemoehybrid, with experts", "qwen3_5_moe, of several towers", "qwen3_next, with experts",
)  # fmt: skip


@pytest.mark.parametrize("family", KINDS)
def test_counts_and_cards_speak_of_the_checkpoint(family: str, tmp_path: Path) -> None:
    source, package = tmp_path / "source", tmp_path / "package"
    checkpoints.write_checkpoint(checkpoints.make_model(family), source)
    manifest = quantize(source, package)
    with open_weights(str(package)) as weights:
        inspection = inspect_weights(weights, num_threads=1)
    quantized = [record for record in manifest.tensors if record.codec != "keep"]
    seen = {tensor.name.partition("[")[0]: tensor for tensor in inspection.tensors}  # of a stack, each expert
    assert set(seen) == {record.name for record in manifest.tensors}
    drafted = {name for name, tensor in seen.items() if tensor.drafts is not None}
    assert drafted >= {record.name for record in quantized} != set()
    card = model_card(manifest, "me/tiny", SourceCard())
    assert f"in the {len(quantized)} quantized of {len(manifest.tensors)} tensors" in card
    config = describe_file(package / "config.json")
    own = {record.name: record for record in manifest.tensors if config.own_name(record.name) is not None}
    a = ModelSizes.of(config)
    stored = sum(prod(record.shape) for record in own.values())
    assert count_parameters(a).total == stored
    assert 0 < multiplied_weights(a) < stored + a.vocab_size * a.hidden_size
    has_state = checkpoints.FAMILIES[family]["model_type"] in checkpoints.RECURRENT
    states = KVCache(config).states
    assert (states is not None) == has_state
    assert state_bytes(a) == (0 if states is None else states.windows[0].nbytes + states.memories[0].nbytes)
    one, ten = kv_bytes(a, 1), kv_bytes(a, 10)
    assert (ten > one) == any(isinstance(layer.mixer, Attention | LatentAttention) for layer in config.layers)
