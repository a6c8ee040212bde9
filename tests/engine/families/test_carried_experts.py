"""gpt-oss's own MXFP4: the target decodes it as transformers does, and the draft is the same bytes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_tokenizer

from mxconv.arch.families.table import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.stored_weights import dense_weights
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
IDS = [int(token) for token in np.random.default_rng(3).integers(0, 96, 40)]
EXPERTS = {"gate_up_proj": (5, 192, 2), "down_proj": (5, 64, 3)}  # experts, rows, blocks of 32


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A checkpoint whose experts are blocks and scales, and what transformers makes of `IDS`, (40, vocabulary)."""
    import safetensors.torch
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = tmp_path_factory.mktemp("carried")
    checkpoints.FAMILIES["carried"] = checkpoints.FAMILIES["gpt_oss"] | {"hidden_size": 64, "intermediate_size": 96}
    try:
        model = checkpoints.make_model("carried")
    finally:
        del checkpoints.FAMILIES["carried"]
    checkpoints.write_checkpoint(model, folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(9)
    for index, layer in enumerate(model.model.layers):
        for name, (count, rows, blocks) in EXPERTS.items():
            stem = f"model.layers.{index}.mlp.experts.{name}"
            codes = torch.randint(0, 256, (count, rows, blocks, 16), dtype=torch.uint8, generator=generator)
            scales = torch.randint(121, 125, (count, rows, blocks), dtype=torch.uint8, generator=generator)
            del tensors[stem]
            tensors |= {f"{stem}_blocks": codes, f"{stem}_scales": scales}
            values: Any = convert_moe_packed_tensors(codes, scales)
            getattr(layer.mlp.experts, name).data.copy_(values.float())
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    write_tiny_tokenizer(folder / "tokenizer.json", 96)
    with torch.no_grad():
        return folder, model(torch.tensor([IDS])).logits[0].numpy()


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_a_checkpoint_decodes_as_in_transformers(carried: tuple[Path, np.ndarray]) -> None:
    folder, expected = carried
    config = describe_file(folder / "config.json")
    with open_checkpoint(folder) as checkpoint:
        decoder = Decoder(config, dense_weights(checkpoint.tensors, config), "carried")
        assert_close(decoder.forward(IDS, KVCache(config)), expected)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_a_package_decodes_its_carried_experts_and_drafts_by_them(
    carried: tuple[Path, np.ndarray], tmp_path: Path, codec: str
) -> None:
    folder, expected = carried
    with open_checkpoint(folder) as checkpoint:
        convert(checkpoint, tmp_path / "package", QuantizeOptions(codec=codec))
    drafts = [parse_draft("fewer-experts:1,confidence=0")]
    for kernel in ("numpy", None):
        with LoadedPackage(tmp_path / "package", kernel=kernel, num_threads=1, drafts=drafts) as loaded:
            target = loaded.levels[0].decoder
            assert target is not None
            if kernel == "numpy":
                assert_close(target.forward(IDS, KVCache(target.config)), expected)
            for num_nodes in (0, 6):  # chains, trees
                hierarchy = Hierarchy(loaded.levels, [3, 3], tree=num_nodes)
                for selection in (Selection(), Selection(Sampling(temperature=0.8), seed=7)):
                    record = verify_decoding(loaded, hierarchy, ["Once", "the sun"], 8, selection)
                    assert record.num_tokens > 0
                    assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)
