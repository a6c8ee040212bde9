"""Families with MTP modules of their own: converted, and what they draft changes nothing."""

from pathlib import Path

import pytest
from checkpoints import write_tiny_tokenizer

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
oracles = pytest.importorskip("mtp_models")
DRAWN = Selection(Sampling(temperature=0.8), seed=7)
PROMPTS = ["Once", "the sun is"]
FAMILIES = {
    "deepseek_v3": ("model.layers.4.", oracles.NEXTN),
    "glm4_moe": ("model.layers.4.", oracles.NEXTN),
    "qwen3_5": ("mtp.", oracles.BESIDE),
    "qwen3_next": ("mtp.", oracles.BESIDE),
}


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint of each family, with a module."""
    folder, model = tmp_path_factory.mktemp("source"), checkpoints.make_model(request.param)
    checkpoints.write_checkpoint(model, folder, oracles.MtpOracle(model).tensors(*FAMILIES[request.param]))
    write_tiny_tokenizer(folder / "tokenizer.json", 96)
    return folder


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_what_they_draft_changes_no_token_and_no_logit(source: Path, codec: str, tmp_path: Path) -> None:
    with open_checkpoint(source) as checkpoint:
        manifest = convert(checkpoint, tmp_path / "package", QuantizeOptions(codec=codec, drafts=("mtp",)))  # type: ignore[arg-type]
    assert [level.kind for level in manifest.levels] == ["target", "self-draft", "mtp"]
    for levels in (["target", "mtp"], None):
        with LoadedPackage(tmp_path / "package", levels, num_threads=1) as loaded:
            drafts = len(loaded.levels) - 1
            for tree, lengths, selection in (
                (8, [3] * drafts, Selection()),
                (8, [3] * drafts, DRAWN),
                ("auto", "auto", DRAWN),
            ):
                confidence = None if lengths == "auto" else [0.0] * drafts
                hierarchy = Hierarchy(loaded.levels, lengths, confidence, tree)  # type: ignore[arg-type]
                record = verify_decoding(loaded, hierarchy, PROMPTS, 6, selection)
                assert record.num_tokens > 0
                assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)
                proposed = hierarchy.generate(loaded.tokenizer.encode(PROMPTS[1]), 8).trace.statistics[-1].num_proposed
                assert proposed > 0 or lengths == "auto"
