"""Families through the whole line: converted, loaded, decoded with their own 4 bits as a draft, and proved."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_tokenizer

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
# least correlations with transformers' logits: of native kernels, which round activations to BF16, and of the draft
LEAST = {  # of random weights
    "gemma4_text": (0.98, 0.3),  # whose errors its layers' own inputs and shared keys carry far
    "deepseek_v3": (0.999, 0.3),  # whose keys and values pass through a few numbers of 4 bits
    "qwen3_next": (0.999, 0.3),  # whose states carry errors far
}
LEAST_OF_OTHERS = (0.999, 0.6)
PROMPTS = ["Once", "A b", "the sun is"]
# what differs most on the way through a package: two towers, fused, turned and shared tensors, experts, states, names
NAMES = [
    "gemma2",
    "gemma3, of several towers",
    "gemma4",
    "phi3",
    "glm4",
    "gpt2",
    "gpt_neox",
    "seed_oss",
    "qwen3_moe",
    "gpt_oss",
    "granitemoe",
    "deepseek_v3",
    "llama4",
    "gemma4, with experts",
    "lfm2",
    "mamba2",
    "qwen3_5, of several towers",
    "qwen3_next",
]


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest, family_of: Callable[[str], Any]) -> Any:
    """Each in turn."""
    return family_of(request.param)


@pytest.fixture(params=["numpy", None], ids=["NumPy", "native"])
def kernel(request: pytest.FixtureRequest) -> str | None:
    """What decodes."""
    name: str | None = request.param
    return name


@pytest.fixture
def package(request: pytest.FixtureRequest, kernel: str | None, family: Any, tmp_path: Path) -> Path:
    """The family's checkpoint, converted: each codec is decoded by one kernel, and the next family's by the other."""
    codec = ("mxfp4", "bsfp")[(NAMES.index(request.node.callspec.params["family"]) + (kernel is None)) % 2]
    source = copytree(family.folder, tmp_path / "source")
    write_tiny_tokenizer(source / "tokenizer.json", 96)
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, tmp_path / "package", QuantizeOptions(codec=codec))
    return tmp_path / "package"


def test_a_package_decodes_as_its_source_and_its_draft_changes_nothing(
    family: Any, package: Path, kernel: str | None
) -> None:
    with LoadedPackage(package, kernel=kernel, num_threads=1) as loaded:
        target, draft = (level.decoder for level in loaded.levels)
        assert target is not None and draft is not None
        found = target.forward(family.token_ids[:40], KVCache(target.config))
        expected = family.expected[:40]
        least, least_drafted = LEAST.get(family.config.model_type, LEAST_OF_OTHERS)
        if kernel == "numpy":
            assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
        else:
            assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > least
        drafted = draft.forward(family.token_ids[:40], KVCache(draft.config))
        assert least_drafted < np.corrcoef(drafted.ravel(), expected.ravel())[0, 1] < 0.99999
        hierarchy = Hierarchy(loaded.levels, [3])
        for selection in (Selection(), Selection(Sampling(temperature=0.8), seed=7)):
            record = verify_decoding(loaded, hierarchy, PROMPTS, 8, selection)
            assert record.num_tokens > 0
            assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)
