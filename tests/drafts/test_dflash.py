"""DFlash heads against the package that defines their format, and as drafts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from head_files import dflash_config, dflash_tensors, open_dflash, write_dflash
from packages import quantize
from reader_levels import HIDDEN_SIZE, VOCAB_SIZE, check_all, specs
from trained_levels import write_noisy

from mxconv.arrays import F32
from mxconv.drafts.dflash import Dflash, DflashConfig, DflashDraft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.errors import ModelError
from mxconv.kernels.engine import native_names
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY

VECTORS = Path(__file__).parents[2] / "formats" / "vectors" / "dflash"
KERNELS = ["numpy", *native_names()[:1]]
SMALL_VOCAB = 60


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", sorted(path.name for path in VECTORS.iterdir()))
def test_blocks_are_those_of_the_speculators_package(case: str, kernel: str) -> None:
    """After every prefix of a text, with a cache that grows by one token after another."""
    head = open_dflash(VECTORS / case, kernel)
    vectors = safetensors.numpy.load_file(VECTORS / case / "expected.safetensors")
    ids = head.config.layers_of(8)
    states, text = vectors["states"][[ids.index(layer) for layer in head.reads.layers]], vectors["tokens"].tolist()
    cache = head.new_cache()
    for place, expected in enumerate(vectors["logits"]):
        logits = head.head.multiply(head.block(text[place], cache))
        np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)
        head.read(states[:, place : place + 1], cache)
    assert cache.length == len(vectors["logits"]) == 8


def test_the_vectors_have_every_switch() -> None:
    configs = [DflashConfig.from_file(path / "config.json") for path in VECTORS.iterdir()]
    assert {config.layer.windows[0] is None for config in configs} == {False, True}
    assert {config.draft_vocab_size == config.vocab_size for config in configs} == {False, True}


def test_the_authors_own_config_says_the_same() -> None:
    """It is that of a Qwen 3, with a section more, in which a layer has the number of what goes into it."""
    values = dflash_config(SMALL_VOCAB, HIDDEN_SIZE, {"sliding_window_non_causal": True})
    for place in ("top", "section"):
        own = {"mask_token_id": 1, "target_layer_ids": [-1, 1, 2]}
        published = values["transformer_layer_config"] | {"dflash_config": own}
        (published if place == "top" else own)["block_size"] = 5
        assert DflashConfig.from_dict(published) == DflashConfig.from_dict(values)
    with pytest.raises(ModelError, match="dflash_config: target_layer_ids is missing; a list of layer numbers is"):
        DflashConfig.from_dict(published | {"dflash_config": {"mask_token_id": 1, "block_size": 5}})


def test_layers_that_are_called_llamas_norm_queries_and_keys_too() -> None:
    values = dflash_config(SMALL_VOCAB, HIDDEN_SIZE)
    layer = values["transformer_layer_config"]
    as_llama = {key: value for key, value in layer.items() if key != "head_dim"} | {"model_type": "llama"}
    assert layer["head_dim"] == HIDDEN_SIZE // layer["num_attention_heads"]
    config = DflashConfig.from_dict(values | {"transformer_layer_config": as_llama})
    assert config.layer == DflashConfig.from_dict(values).layer
    assert config.layer.attentions[0].query_norm is not None


CONFIG = dflash_config(VOCAB_SIZE, HIDDEN_SIZE)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocks")
    write_dflash(folder / "dflash", CONFIG, "BF16")
    write_dflash(folder / "shifted", CONFIG | {"sample_from_anchor": True}, "BF16")
    write_dflash(folder / "known", CONFIG | {"draft_vocab_size": 100}, known=range(100))
    drafts = (f"checkpoint:{write_noisy(folder / 'noisy')}", f"dflash:{folder / 'known'}", "prompt-lookup")
    quantize(write_noisy(folder / "source", 0.0), folder / "package", drafts=drafts)
    return folder / "package"


@pytest.mark.parametrize(("tree", "name"), [("chain", "dflash"), (12, "dflash"), (12, "shifted")])
@pytest.mark.parametrize("levels", [["target"], ["target", "mxfp4"], ["target", "noisy"]])
def test_a_block_is_that_of_a_head_without_a_past(
    package: Path, levels: list[str], tree: int | str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given the states of the moment. Below the 4-bit level states of a token come from one model and then another."""
    num_read = num_seen = num_proposals = 0
    begin, read = DflashDraft.begin, Dflash.read

    def counted(self: Dflash, states: F32, cache: KVCache) -> None:
        nonlocal num_read
        num_read += states.shape[1]
        read(self, states, cache)

    def compared(self: DflashDraft, context: Sequence[int]) -> F32:
        nonlocal num_seen, num_proposals
        logits = begin(self, context)
        head, cache = self._head, self._head.new_cache()
        read(head, self.inputs.session.states.read(head.reads, 0, len(context) - 1), cache)
        block = head.block(context[-1], cache)[head.config.first_row :]
        expected = head.head.multiply(block[: self.num_wanted])
        np.testing.assert_allclose(self._logits, expected, rtol=1e-4, atol=1e-4)
        num_seen += len(context) - 1
        num_proposals += 1
        return logits

    monkeypatch.setattr(Dflash, "read", counted)
    monkeypatch.setattr(DflashDraft, "begin", compared)
    with LoadedPackage(package, levels, "numpy", drafts=specs(package.parent, f"dflash:HERE/{name}")) as loaded:
        counts = check_all(loaded.levels, [3] * len(levels), tree, GREEDY)
    assert counts[-1][0] > 0 and num_proposals > 15
    assert num_read < num_seen / 2  # what stood before is not read again


def test_a_proposal_is_one_pass_whatever_its_length(package: Path) -> None:
    with LoadedPackage(package, ["target"], drafts=specs(package.parent, "dflash:HERE/dflash")) as loaded:
        for tree in ("chain", 12):
            hierarchy = Hierarchy(loaded.levels, [4], [0.0], tree)
            run = hierarchy.generate(loaded.tokenizer.encode("import os"), 24)
            draft = run.trace.statistics[1]
            proposals = sum(entry.num_proposed > 0 for entry in run.trace.entries if entry.level == draft.name)
            assert draft.num_forwards == proposals > 0
            most = max(entry.num_proposed for entry in run.trace.entries if entry.level == draft.name)
            assert most == 4 or tree != "chain"


def test_a_pass_reads_the_targets_head_where_it_has_none(package: Path) -> None:
    drafts = specs(package.parent, "dflash:HERE/dflash", "dflash:HERE/known")
    with LoadedPackage(package, ["target"], drafts=drafts) as loaded:
        whole, known = (loaded.bytes_per_pass(level) for level in loaded.levels[1:])
    layers = [array for name, array in dflash_tensors(CONFIG).items() if array.ndim == 2]
    assert whole == 2 * (sum(array.size for array in layers) + VOCAB_SIZE * HIDDEN_SIZE)
    assert known == whole - 2 * (VOCAB_SIZE - 100) * HIDDEN_SIZE
