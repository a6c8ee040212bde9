"""MTP modules beside transformers' own, under every layout of names; and as drafts, in 16 and in 4 bits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mtp_packages import write_mimo
from packages import quantize
from reader_levels import SELECTIONS, check_all
from trained_levels import write_noisy

from mxconv.arch.config import ModelConfig
from mxconv.arch.families import mtp_modules as layouts
from mxconv.arch.families.keys import Keys
from mxconv.arch.families.registry import describe_file, describe_values
from mxconv.arch.fields import Fields
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.mtp import MtpModule, check_mtp
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.engine.sequence_rows import States
from mxconv.engine.stored_weights import dense_weights
from mxconv.engine.tree import Tree
from mxconv.errors import ModelError, MxconvError
from mxconv.speculation.selection import GREEDY

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
oracles = pytest.importorskip("mtp_models")
TEXT = [int(token) for token in np.random.default_rng(3).integers(0, 96, 24)]
DRAFTED = [17, 4, 80]


def described(values: Mapping[str, Any], layout: str) -> ModelConfig:
    """A family's description, with an MTP module under another's names."""
    config = describe_values(values)
    keys = Keys.read(Fields({**values, "num_nextn_predict_layers": 1}, "config.json"), 256)
    if layout == "nextn":
        return replace(config, mtp=layouts.nextn(keys, config.layers[0]))
    if layout == "beside":
        return replace(config, mtp=layouts.beside(keys, config.layers[0]))
    return config


@dataclass(frozen=True)
class Case:
    """A model and its MTP module."""

    oracle: Any
    decoder: Decoder
    module: MtpModule


# of each: the family, the layout, where its tensors lie, their names there
CASES = {
    "mimo": ("mimo", "mtp_layers", "model.mtp_layers.0.", oracles.MTP_LAYERS),
    "deepseek_v3": ("deepseek_v3", "nextn", "model.layers.4.", oracles.NEXTN),
    "glm4_moe": ("glm4_moe", "nextn", "model.layers.4.", oracles.NEXTN),
    "qwen3_5": ("qwen3_5", "beside", "mtp.", oracles.BESIDE),
    "qwen3_5, of several towers": ("qwen3_5, of several towers", "beside", "mtp.", oracles.BESIDE),
    "qwen3_next": ("qwen3_next", "beside", "mtp.", oracles.BESIDE),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Each in turn, read from disk."""
    family, layout, prefix, names = CASES[request.param]
    folder, model = tmp_path_factory.mktemp("mtp"), checkpoints.make_model(family)
    oracle = oracles.MtpOracle(model, state_first=layout == "mtp_layers")
    checkpoints.write_checkpoint(model, folder, oracle.tensors(prefix, names))
    config = describe_file(folder / "config.json")
    if config.mtp is None:
        config = described(Fields.read(folder / "config.json").values, layout)
    with open_checkpoint(folder) as checkpoint:
        check_mtp(config, checkpoint.tensors, "tiny")
        weights = dense_weights(checkpoint.tensors, config)
    return Case(oracle, Decoder(config, weights, "tiny"), MtpModule(config, weights, "mtp"))


def states_of(decoder: Decoder, text: list[int]) -> np.ndarray:
    """(1, n, hidden_size): what the module reads."""
    states = States(normed_last=True)
    decoder.forward(text, KVCache(decoder.config), states=states)
    assert states.values is not None
    return states.values


def test_its_logits_are_those_of_transformers_behind_a_text_and_behind_its_own_tokens(case: Case) -> None:
    module, read = case.module, states_of(case.decoder, TEXT[:-1])
    theirs = case.oracle.states(TEXT[:-1])
    assert np.abs(read[0] - theirs).max() <= 1e-3 * np.abs(theirs).max()
    cache = module.new_cache()
    features = module.advance(module.fuse(read), TEXT[1:], cache)[-1:]
    found = [module.logits(features)]
    for token in DRAFTED:
        features = module.advance(features, [token], cache)
        found.append(module.logits(features))
    expected = case.oracle.logits(TEXT, DRAFTED)
    assert np.abs(np.concatenate(found) - expected).max() <= 1e-3 * np.abs(expected).max()
    assert (np.concatenate(found).argmax(-1) == expected.argmax(-1)).all()


def test_bits_of_a_row_are_those_of_its_path(case: Case) -> None:
    module, features = case.module, case.module.fuse(states_of(case.decoder, TEXT[:-1]))
    whole = module.advance(features, TEXT[1:], module.new_cache())
    cache = module.new_cache()
    for start, stop in ((0, 1), (1, 4), (4, 23)):
        part = module.advance(features[start:stop], TEXT[1:][start:stop], cache)
        np.testing.assert_array_equal(part, whole[start:stop])
    above = whole[[-1, -1, -1]]
    tree = module.advance(above, [5, 6, 7], cache, Tree([-1, -1, -1]))
    further = module.advance(tree[[2, 0]], [8, 9], cache, Tree([-1, -1, -1, 2, 0], 3))
    for path, expected in (([7, 8], further[:1]), ([5, 9], further[1:])):
        alone = module.new_cache()
        module.advance(features, TEXT[1:], alone)
        first = module.advance(whole[-1:], path[:1], alone)
        np.testing.assert_array_equal(module.advance(first, path[1:], alone), expected)


def test_a_model_without_a_module_is_refused() -> None:
    values = checkpoints.SIZES | {"model_type": "mimo"}
    assert describe_values(values).mtp is None
    with pytest.raises(ModelError, match="here: model_type mimo without MTP layers; a checkpoint that was trained"):
        check_mtp(describe_values(values), ["model.norm.weight"], "here")
    config = describe_values(values | {"num_nextn_predict_layers": 2})
    assert config.mtp is not None and config.mtp.modules == ("model.mtp_layers.0.", "model.mtp_layers.1.")
    message = r"here: no tensor begins with model.mtp_layers.0., where mimo has .* save_pretrained leaves out"
    with pytest.raises(ModelError, match=message):
        check_mtp(config, ["model.norm.weight"], "here")
    for wrong in (-1, "one", 10**6, 1.5):
        with pytest.raises(ModelError, match=r"num_nextn_predict_layers is .*; an integer from 0 to 4096 is required"):
            describe_values(values | {"num_nextn_predict_layers": wrong})


def test_a_tensor_of_another_shape_is_refused(tmp_path: Any) -> None:
    model = checkpoints.make_model("mimo")
    oracle = oracles.MtpOracle(model, state_first=True)
    tensors = oracle.tensors("model.mtp_layers.0.", oracles.MTP_LAYERS)
    tensors["model.mtp_layers.0.input_proj.weight"] = tensors["model.mtp_layers.0.input_proj.weight"][:, 1:]
    checkpoints.write_checkpoint(model, tmp_path, tensors)
    config = describe_file(tmp_path / "config.json")
    message = r"tensor model.mtp_layers.0.input_proj.weight has shape \(48, 95\); config.json requires \(48, 96\)"
    with open_checkpoint(tmp_path) as checkpoint, pytest.raises(ModelError, match=message):
        MtpModule(config, dense_weights(checkpoint.tensors, config), "mtp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a module, packages of it, and the checkpoint without the module's tensors."""
    folder = tmp_path_factory.mktemp("mtp")
    write_mimo(folder / "source")
    write_mimo(folder / "stripped", with_module=False)
    for codec in ("mxfp4", "bsfp"):
        quantize(folder / "source", folder / codec, codec=codec, drafts=("mtp", "prompt-lookup"))
    return folder


@pytest.mark.parametrize(
    ("codec", "bits", "levels", "tree"),
    [
        ("mxfp4", 4, ["target"], "chain"),
        ("bsfp", 4, ["target", "bsfp"], 12),
        ("bsfp", 16, ["target"], "chain"),
    ],
)
def test_the_text_is_the_targets(folder: Path, codec: str, bits: int, levels: list[str], tree: int | str) -> None:
    with LoadedPackage(folder / codec, levels, drafts=[parse_draft(f"mtp,bits={bits}")]) as loaded:
        for selection in SELECTIONS.values():
            proposed, accepted = check_all(loaded.levels, [3] * len(levels), tree, selection)[-1]
            assert accepted > 0
            if selection == GREEDY:  # of 1,024 tokens: by chance next to none would be accepted
                assert accepted > proposed * (0.9 if bits == 16 and levels == ["target"] else 0.25)


@pytest.mark.parametrize("codec", ["mxfp4", "bsfp"])
def test_it_drafts_for_the_4_bit_level_as_target_and_needs_nothing_else(folder: Path, codec: str) -> None:
    with LoadedPackage(folder / codec, [codec], drafts=[parse_draft("mtp")]) as loaded:
        check_all(loaded.levels, [3], 12, GREEDY)
        assert "sixteen_bits" not in vars(loaded.own)


def test_a_package_has_it_as_a_level_behind_models_and_before_look_ups(folder: Path) -> None:
    with LoadedPackage(folder / "bsfp") as loaded:
        records = [level.record for level in loaded.levels]
        assert [record.name for record in records] == ["target", "bsfp", "mtp", "prompt-lookup"]
        assert (records[2].kind, records[2].codec, records[2].shares) == ("mtp", "bsfp", ["weights", "tokenizer"])
        for selection in SELECTIONS.values():
            check_all(loaded.levels, "auto", "auto", selection)
    with pytest.raises(ModelError, match="level mtp first, which reads another level's hidden states and decodes"):
        LoadedPackage(folder / "bsfp", ["mtp", "target"])


def test_a_checkpoint_without_one_is_refused(folder: Path, tmp_path: Path) -> None:
    """Where config.json names one and its tensors are gone, and where the family has none: converting and decoding."""
    stripped = r"no tensor begins with model.mtp_layers.0., where mimo has its MTP layer; one is required, which "
    with pytest.raises(ModelError, match=stripped):
        quantize(folder / "stripped", tmp_path / "package", drafts=("mtp",))
    assert not (tmp_path / "package").exists()
    quantize(folder / "stripped", tmp_path / "stripped")
    with pytest.raises(ModelError, match=f"{tmp_path / 'stripped'}: {stripped}"):
        LoadedPackage(tmp_path / "stripped", ["target"], drafts=[parse_draft("mtp")])
    quantize(write_noisy(tmp_path / "llama"), tmp_path / "plain")
    with pytest.raises(ModelError, match="plain: model_type llama without MTP layers; a checkpoint that was trained"):
        LoadedPackage(tmp_path / "plain", ["target"], drafts=[parse_draft("mtp")])
    (tmp_path / "llama" / "config.json").unlink()
    with pytest.raises(MxconvError, match=r"--draft mtp: .*llama has no config.json; the one that says which family"):
        quantize(tmp_path / "llama", tmp_path / "package", drafts=("mtp",))
