"""Families through the whole line: converted, loaded, decoded with drafts of every kind, and proved."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from checkpoints import write_tiny_tokenizer
from packages import quantize
from plug_ins import STAND, SWIFT

from mxconv.arch.families.registry import describe_file
from mxconv.checkpoint.source import open_checkpoint
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
mtp_models = pytest.importorskip("mtp_models")
# least correlations with transformers' logits: of native kernels, which round activations to BF16, and of the draft
LEAST = {  # of random weights
    "gemma4_text": (0.98, 0.3),  # whose errors its layers' own inputs and shared keys carry far
    "deepseek_v3": (0.999, 0.3),  # whose keys and values pass through a few numbers of 4 bits
    "qwen3_next": (0.999, 0.3),  # whose states carry errors far
}
LEAST_OF_OTHERS = (0.999, 0.6)
PROMPTS = ["Once", "A b", "the sun is"]
DRAWN = Selection(Sampling(temperature=0.8), seed=7)
# what differs most on the way through a package: two towers, fused, turned and shared tensors, experts, states, names
NAMES = [
    "gemma3, of several towers",
    "phi3",
    "gpt2",
    "gpt_neox",
    "qwen3_moe",
    "gpt_oss",
    "granitemoe",
    "deepseek_v3",
    "gemma4, with experts",
    "lfm2",
    "mamba2",
    "qwen3_next",
]
MTP = {
    "deepseek_v3": ("model.layers.4.", mtp_models.NEXTN),
    "glm4_moe": ("model.layers.4.", mtp_models.NEXTN),
    "qwen3_5": ("mtp.", mtp_models.BESIDE),
    "qwen3_next": ("mtp.", mtp_models.BESIDE),
}
IDS = [int(token) for token in np.random.default_rng(3).integers(0, 96, 40)]
EXPERTS = {"gate_up_proj": (5, 192, 2), "down_proj": (5, 64, 3)}  # experts, rows, blocks of 32


def assert_nothing_changes(loaded: LoadedPackage, hierarchy: Hierarchy, count: int, *selections: Selection) -> None:
    """Tokens and logits with drafts are those without, greedy and drawn unless selections are given."""
    for selection in selections or (Selection(), DRAWN):
        record = verify_decoding(loaded, hierarchy, PROMPTS[::2], count, selection)
        assert record.num_tokens > 0
        assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)


def num_proposed(loaded: LoadedPackage, hierarchy: Hierarchy) -> list[int]:
    """Tokens that each draft proposes."""
    trace = hierarchy.generate(loaded.tokenizer.encode(PROMPTS[2]), 8).trace
    return [level.num_proposed for level in trace.statistics]


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
    assert (found.argmax(-1) == expected.argmax(-1)).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_package_decodes_as_its_source_and_its_draft_changes_nothing(
    family_of: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    family, number = family_of(name), NAMES.index(name)
    source = copytree(family.folder, tmp_path / "source")
    write_tiny_tokenizer(source / "tokenizer.json", 96)
    quantize(source, tmp_path / "package", codec=("mxfp4", "bsfp")[number % 2])
    expected, (least, least_drafted) = family.expected[:40], LEAST.get(family.config.model_type, LEAST_OF_OTHERS)
    for kernel in ("numpy", None):
        with LoadedPackage(tmp_path / "package", kernel=kernel, num_threads=1) as loaded:
            target, draft = (level.decoder for level in loaded.levels)
            assert target is not None and draft is not None
            found = target.forward(family.token_ids[:40], KVCache(target.config))
            if kernel == "numpy":
                assert np.abs(found - expected).max() <= 1e-3 * np.abs(expected).max()
            else:
                assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > least
            drafted = draft.forward(family.token_ids[:40], KVCache(draft.config))
            assert least_drafted < np.corrcoef(drafted.ravel(), expected.ravel())[0, 1] < 0.99999
            selections = () if kernel is None else (Selection(),) if number % 4 < 2 else (DRAWN,)
            assert_nothing_changes(loaded, Hierarchy(loaded.levels, [3]), 8, *selections)


@pytest.mark.parametrize("name", MTP)
def test_what_mtp_modules_draft_changes_no_token_and_no_logit(tmp_path: Path, name: str) -> None:
    model, source = checkpoints.make_model(name), tmp_path / "source"
    checkpoints.write_checkpoint(model, source, mtp_models.MtpOracle(model).tensors(*MTP[name]))
    write_tiny_tokenizer(source / "tokenizer.json", 96)
    codec = ("mxfp4", "bsfp")[list(MTP).index(name) % 2]
    manifest = quantize(source, tmp_path / "package", codec=codec, drafts=("mtp",))
    assert [level.kind for level in manifest.levels] == ["target", "self-draft", "mtp"]
    levels = ["target", "mtp"] if codec == "mxfp4" else None
    with LoadedPackage(tmp_path / "package", levels, num_threads=1) as loaded:
        drafts = len(loaded.levels) - 1
        hierarchy = Hierarchy(loaded.levels, [3] * drafts, [0.0] * drafts, 8)
        assert_nothing_changes(loaded, hierarchy, 6)
        assert num_proposed(loaded, hierarchy)[-1] > 0
        assert_nothing_changes(loaded, Hierarchy(loaded.levels, "auto", None, "auto"), 6, DRAWN)


@pytest.fixture(scope="module")
def recurrent(family_of: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes (once) the package of a family with states."""

    @cache
    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp("recurrent")
        source = copytree(family_of(name).folder, folder / "source")
        write_tiny_tokenizer(source / "tokenizer.json", 96)
        quantize(source, folder / "package", codec="bsfp")
        return folder / "package"

    return make


@pytest.mark.parametrize(
    ("name", "drafts", "lengths", "tree", "kernel"),
    [
        ("qwen3_5", (), [4], 8, "numpy"),
        ("mamba2", (STAND,), [3, 2], 6, None),
        ("qwen3_5", ("streaming,sink=1,window=3",), "auto", "auto", None),
        ("lfm2", ("checkpoint:{source}", "prompt-lookup"), [3, 2, 1], "chain", None),
    ],
)
def test_nothing_changes_with_drafts_of_a_target_with_states(
    recurrent: Callable[[str], Path], name: str, drafts: tuple[str, ...], lengths: Any, tree: Any, kernel: str | None
) -> None:
    """Trees of the self-draft, a model with states of its own."""
    package = recurrent(name)
    specs = [parse_draft(draft.format(source=package.parent / "source")) for draft in drafts]
    with LoadedPackage(package, kernel=kernel, num_threads=2, drafts=specs) as loaded:
        hierarchy = Hierarchy(loaded.levels, lengths, None if lengths == "auto" else [0.0], tree)
        assert_nothing_changes(loaded, hierarchy, 12)
        if lengths != "auto":  # which may find that nothing pays
            assert sum(num_proposed(loaded, hierarchy)) > 0


def test_a_draft_whose_layers_change_studies_on_the_shared_states(recurrent: Callable[[str], Path]) -> None:
    with LoadedPackage(recurrent("lfm2"), ["target"], drafts=[parse_draft(SWIFT)]) as loaded:
        assert_nothing_changes(loaded, Hierarchy(loaded.levels, [3], [0.0]), 24, Selection())


@pytest.fixture(scope="module")
def carried(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """gpt-oss's own MXFP4, blocks and scales, and what transformers makes of `IDS`, (40, vocabulary)."""
    import safetensors.torch
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    folder = tmp_path_factory.mktemp("carried")
    model = checkpoints.make_model("gpt_oss", hidden_size=64, intermediate_size=96)
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


def test_a_checkpoint_of_carried_experts_decodes_as_in_transformers(carried: tuple[Path, np.ndarray]) -> None:
    folder, expected = carried
    config = describe_file(folder / "config.json")
    with open_checkpoint(folder) as checkpoint:
        decoder = Decoder(config, dense_weights(checkpoint.tensors, config), "carried")
        assert_close(decoder.forward(IDS, KVCache(config)), expected)


@pytest.mark.parametrize(("codec", "kernels"), [("mxfp4", ("numpy",)), ("bsfp", (None,))])
def test_a_package_decodes_its_carried_experts_and_drafts_by_them(
    carried: tuple[Path, np.ndarray], tmp_path: Path, codec: str, kernels: tuple[str | None, ...]
) -> None:
    folder, expected = carried
    quantize(folder, tmp_path / "package", codec=codec)
    drafts = [parse_draft("fewer-experts:1,confidence=0")]
    for kernel in kernels:
        with LoadedPackage(tmp_path / "package", kernel=kernel, num_threads=1, drafts=drafts) as loaded:
            target = loaded.levels[0].decoder
            assert target is not None
            if kernel == "numpy":
                assert_close(target.forward(IDS, KVCache(target.config)), expected)
            for num_nodes in (0, 6):  # chains, trees
                assert_nothing_changes(loaded, Hierarchy(loaded.levels, [3, 3], tree=num_nodes), 8)
