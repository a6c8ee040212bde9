"""DFlash heads in hierarchies: one pass a block, what they have read, trees, packages, what is refused."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from dflash_heads import dflash_config, dflash_tensors, write_dflash
from eagle3_heads import write_tensors
from packages import quantize
from reader_levels import HIDDEN_SIZE, VOCAB_SIZE, check_all, specs
from trained_levels import write_noisy

from mxconv.arrays import F32
from mxconv.drafts.dflash import Dflash, DflashDraft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.errors import ModelError
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import GREEDY

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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"aux_hidden_state_layer_ids": [1, 4]}, "reads the states of layers 1, 4 .*; different ones from 0 to 3, the"),
        ({"draft_vocab_size": 100}, "tensor d2t is missing; with 100 of 1024 tokens it is required"),
    ],
)
def test_what_does_not_fit_the_target_is_refused(
    package: Path, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    tensors = {name: array.astype(np.float16) for name, array in dflash_tensors(CONFIG).items()}
    write_tensors(tmp_path / "other", CONFIG | changes, tensors)
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "dflash:HERE/other"))


@pytest.mark.parametrize("tensor", ["fc.weight", "layers.1.self_attn.k_norm.weight"])
def test_a_head_without_a_tensor_is_refused(package: Path, tensor: str, tmp_path: Path) -> None:
    tensors = {n: a.astype(np.float16) for n, a in dflash_tensors(CONFIG).items() if n != tensor}
    write_tensors(tmp_path / "other", CONFIG, tensors)
    with pytest.raises(ModelError, match=f"tensor {tensor} is missing"):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "dflash:HERE/other"))
