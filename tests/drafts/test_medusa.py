"""Medusa's heads against torch modules, in every layout that is read, and heads that are refused."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from packages import quantize
from random_heads import NUM_HEADS, fit_outputs, torch_logits, write_heads
from reader_levels import check_all, open_reader, specs
from tiny_levels import by_hand
from trained_levels import PROMPTS, TRAINED

from mxconv.arrays import F32
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.medusa import MedusaHeads
from mxconv.engine.cache import KVCache
from mxconv.engine.sequence_rows import States
from mxconv.errors import CheckpointError, ModelError, MxconvError
from mxconv.kernels.engine import native_names
from mxconv.speculation.selection import GREEDY

TARGET = json.loads((TRAINED / "config.json").read_text())
SIZE, VOCAB_SIZE = TARGET["hidden_size"], TARGET["vocab_size"]
LAYOUTS = ("medusa", "medusa-shared", "vllm", "vllm-shared")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("medusa")
    quantize(TRAINED, folder / "package")
    return folder / "package"


def logits_of(reader: MedusaHeads, states: F32, tokens: Sequence[int]) -> list[F32]:
    """Of every head after a text whose states are given, where it goes on with tokens."""
    rows, found = reader.begin(states[-1:]), []
    for stage, token in enumerate(tokens):
        rows = reader.advance(stage, rows, [token])
        found.append(reader.logits(stage, rows)[0])
    return found


CASES = [(layout, "numpy") for layout in LAYOUTS]
# a matrix of the target is BF16, which native kernels multiply by BF16
CASES += [(layout, kernel) for layout in LAYOUTS if layout != "medusa-shared" for kernel in native_names()[:1]]


@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize(("layout", "kernel"), CASES)
def test_logits_are_those_of_torch(layout: str, kernel: str, num_blocks: int, package: Path, tmp_path: Path) -> None:
    file = "medusa_lm_head.pt" if layout == "medusa" else "medusa_lm_head.safetensors"
    module = write_heads(tmp_path / "heads", layout, TARGET, file=file, num_blocks=num_blocks)
    states = (2 * np.random.default_rng(1).standard_normal((7, SIZE))).astype(np.float32)
    tokens = np.random.default_rng(2).integers(0, VOCAB_SIZE, NUM_HEADS)
    with LoadedPackage(package, ["target"], kernel=kernel) as loaded:
        found = logits_of(open_reader("medusa", tmp_path / "heads", kernel, loaded.target), states, tokens.tolist())
        expected = torch_logits(module, states, tokens, loaded.target)
    assert len(found) == NUM_HEADS
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


def test_heads_that_were_fitted_to_texts_are_right_about_them(package: Path, tmp_path: Path) -> None:
    """By least squares of their output matrices over the target's own texts."""
    module = write_heads(tmp_path / "heads", "medusa", TARGET, "F16")
    with LoadedPackage(package, ["target"], kernel="numpy") as loaded:
        texts = []
        for prompt in PROMPTS:
            ids, states = loaded.tokenizer.encode(prompt), States(normed_last=True)
            text = [*ids, *by_hand(loaded.target, ids, 24).token_ids]
            logits = loaded.target.forward(text, KVCache(loaded.target.config), states=states)
            assert states.values is not None
            texts.append((np.array(text), states.values[0], logits))
        fit_outputs(module, texts, loaded.target)
    safetensors.torch.save_file(module.to(torch.float16).state_dict(), tmp_path / "heads" / "model.safetensors")
    drafts = specs(tmp_path, "medusa:HERE/heads")
    with LoadedPackage(package, ["target"], drafts=drafts) as loaded:
        for tree in ("chain", 12):
            proposed, accepted = check_all(loaded.levels, [3], tree, GREEDY)[-1]
            assert accepted > 0.3 * proposed > 0


@pytest.mark.parametrize("layout", ["medusa", "medusa-shared"])
def test_a_file_of_torch_is_converted_before_a_package_holds_it(layout: str, package: Path, tmp_path: Path) -> None:
    write_heads(tmp_path / "heads", layout, TARGET, "F32", "medusa_lm_head.pt")
    message = (
        "holds F32 in .pt files; BF16 or F16 safetensors are required. Convert it first and use --draft medusa:PATH"
    )
    with pytest.raises(MxconvError, match=message):
        quantize(TRAINED, tmp_path / "refused", drafts=(f"medusa:{tmp_path / 'heads'}",))
    with pytest.raises(ModelError, match=r"tensor \S+weight is F32; BF16 or F16 is required. Convert it with mxconv"):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "medusa:HERE/heads"))
    quantize(tmp_path / "heads", tmp_path / "converted", dtype="bf16")
    quantize(TRAINED, tmp_path / "both", drafts=(f"medusa:{tmp_path / 'converted'}",))
    with LoadedPackage(tmp_path / "both") as loaded:
        level = loaded.levels[-1]
        assert (level.record.kind, level.record.codec, level.record.num_draft_tokens) == (
            "medusa",
            "package",
            NUM_HEADS,
        )
        assert 0 < loaded.bytes_per_pass(level) < loaded.bytes_per_pass(loaded.levels[0])
        assert check_all(loaded.levels, "auto", "auto", GREEDY, num_tokens=8)[-1][0] >= 0


def test_a_pickle_that_runs_code_is_not_opened(package: Path, tmp_path: Path) -> None:
    write_heads(tmp_path / "heads", "medusa", TARGET)
    (tmp_path / "heads" / "model.safetensors").unlink()
    torch.save({"0.0.linear.weight": os.system}, tmp_path / "heads" / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=r"its pickle wants to use .*system, which may run code"):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "medusa:HERE/heads"))


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("medusa", {"medusa_num_heads": None}, "medusa_num_heads is null; an integer from 1"),
        ("medusa", {"medusa_num_heads": 4}, "is 4; at most 3 is required, the number of tensors N.0.linear.weight"),
        ("medusa", {"medusa_num_layers": 65}, "medusa_num_layers is 65; at most 64 blocks"),
        ("medusa", {"medusa_num_layers": 2}, r"tensor 0.1.linear.weight is missing; its shape \(64, 64\)"),
        ("vllm", {"truncated_vocab_size": 100}, "truncated_vocab_size is 100; the same as vocab_size"),
        ("vllm", {"num_heads": 9}, "num_heads is 9; at most 3"),
        ("vllm", {"medusa_fc_bias": 1}, "medusa_fc_bias is 1; true or false"),
    ],
)
def test_heads_that_are_refused(
    layout: str, changes: dict[str, Any], message: str, package: Path, tmp_path: Path
) -> None:
    write_heads(tmp_path / "heads", layout, TARGET, **changes)
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "medusa:HERE/heads"))
