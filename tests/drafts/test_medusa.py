"""Medusa's and Hydra's heads against torch modules, in every layout that is read, and every reason to refuse one."""

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
from reader_levels import check_all, specs
from tiny_levels import by_hand, record_of
from trained_levels import PROMPTS, TRAINED

from mxconv.arrays import F32
from mxconv.drafts.kinds import KINDS, parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.medusa import MedusaKind
from mxconv.drafts.readers.medusa_heads import MedusaHeads
from mxconv.drafts.readers.staged_draft import StagedDraft
from mxconv.engine.cache import KVCache
from mxconv.engine.states import Reads, States
from mxconv.errors import CheckpointError, ModelError, MxconvError
from mxconv.kernels.engine import native_names
from mxconv.speculation.selection import GREEDY

TARGET = json.loads((TRAINED / "config.json").read_text())
SIZE, VOCAB_SIZE = TARGET["hidden_size"], TARGET["vocab_size"]
LAYOUTS = ("medusa", "medusa-shared", "vllm", "vllm-shared", "hydra", "hydra-alone", "hydra-prefix")


def kind_of(layout: str) -> str:
    return "hydra" if layout.startswith("hydra") else "medusa"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("medusa")
    quantize(TRAINED, folder / "package")
    return folder / "package"


def load(folder: Path, kind: str, loaded: LoadedPackage) -> MedusaHeads:
    record = record_of(parse_draft(f"{kind}:anywhere"), kind, "f16")
    made = KINDS[kind]
    assert isinstance(made, MedusaKind)
    return made.reader(folder, record, loaded.matrices, loaded.stack, loaded.target)


def logits_of(reader: MedusaHeads, states: F32, tokens: Sequence[int]) -> list[F32]:
    """Of every head after a text whose states are given, where it goes on with tokens."""
    last = states[-1:]
    if reader.prefix is not None:
        cache = KVCache(reader.prefix.config)
        reader.prefix.advance(states[:3], [0] * 3, cache)
        last = reader.prefix.advance(states[3:], [0] * (len(states) - 3), cache)[-1:]
    rows, found = reader.begin(last), []
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
    file = {"medusa": "medusa_lm_head.pt", "hydra-prefix": "hydra_lm_head.pt"}.get(layout, "medusa_lm_head.safetensors")
    module = write_heads(tmp_path / "heads", layout, TARGET, file=file, num_blocks=num_blocks)
    states = (2 * np.random.default_rng(1).standard_normal((7, SIZE))).astype(np.float32)
    tokens = np.random.default_rng(2).integers(0, VOCAB_SIZE, NUM_HEADS)
    with LoadedPackage(package, ["target"], kernel=kernel) as loaded:
        found = logits_of(load(tmp_path / "heads", kind_of(layout), loaded), states, tokens.tolist())
        expected = torch_logits(module, states, tokens, loaded.target)
    assert len(found) == NUM_HEADS
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("layout", ["medusa", "hydra", "hydra-prefix"])
def test_drafts_read_the_state_that_chose_the_last_token(
    layout: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rounds with rejected tokens, whose states are no part of the text that a layer reads."""
    module = write_heads(tmp_path / "heads", layout, TARGET)
    seen: list[tuple[list[int], F32]] = []
    begin = StagedDraft.begin

    def noted(self: StagedDraft, context: Sequence[int]) -> F32:
        seen.append((list(context), begin(self, context)))
        return seen[-1][1]

    monkeypatch.setattr(StagedDraft, "begin", noted)
    drafts = specs(tmp_path, f"{kind_of(layout)}:HERE/heads")
    with LoadedPackage(package, ["target"], kernel="numpy", drafts=drafts) as loaded:
        proposed, accepted = check_all(loaded.levels, [3], 8, GREEDY, num_tokens=8)[-1]
        assert proposed > accepted
        for context, logits in seen:
            states = States(normed_last=True)
            loaded.target.forward(context[:-1], KVCache(loaded.target.config), states=states)
            assert states.values is not None
            expected = torch_logits(module, states.values[0], np.array(context[-1:]), loaded.target)[0]
            np.testing.assert_allclose(logits[0], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert len(seen) > 12


@pytest.mark.parametrize("layout", ["medusa", "hydra", "hydra-prefix"])
def test_heads_that_were_fitted_to_texts_are_right_about_them(layout: str, package: Path, tmp_path: Path) -> None:
    """By least squares of their output matrices over the target's own texts."""
    module = write_heads(tmp_path / "heads", layout, TARGET, "F16")
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
    drafts = specs(tmp_path, f"{kind_of(layout)}:HERE/heads")
    with LoadedPackage(package, ["target"], drafts=drafts) as loaded:
        for tree in ("chain", 12):
            proposed, accepted = check_all(loaded.levels, [3], tree, GREEDY)[-1]
            assert accepted > 0.3 * proposed > 0


def test_hydra_reads_the_layer_that_its_config_names(package: Path, tmp_path: Path) -> None:
    num_layers = TARGET["num_hidden_layers"]
    for offset in (1, num_layers):
        write_heads(tmp_path / str(offset), "hydra", TARGET, hidden_state_offset=offset)
        with LoadedPackage(package, ["target"], drafts=specs(tmp_path, f"hydra:HERE/{offset}")) as loaded:
            reader = loaded.levels[1].reader
            assert reader is not None and reader.reads == Reads((num_layers - offset,))
            assert check_all(loaded.levels, [3], "chain", GREEDY, num_tokens=6)[-1][0] > 0
    write_heads(tmp_path / "deep", "hydra", TARGET, hidden_state_offset=num_layers + 1)
    with pytest.raises(ModelError, match=f"deep: reads layers up to {num_layers}, and the target's last is"):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, "hydra:HERE/deep"))


@pytest.mark.parametrize("layout", ["medusa", "medusa-shared", "hydra-prefix"])
def test_a_file_of_torch_is_converted_before_a_package_holds_it(layout: str, package: Path, tmp_path: Path) -> None:
    kind, file = kind_of(layout), f"{kind_of(layout)}_lm_head.pt"
    write_heads(tmp_path / "heads", layout, TARGET, "F32", file)
    message = (
        f"holds F32 in .pt files; BF16 or F16 safetensors are required. Convert it first and use --draft {kind}:PATH"
    )
    with pytest.raises(MxconvError, match=message):
        quantize(TRAINED, tmp_path / "refused", drafts=(f"{kind}:{tmp_path / 'heads'}",))
    with pytest.raises(ModelError, match=r"tensor \S+weight is F32; BF16 or F16 is required. Convert it with mxconv"):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, f"{kind}:HERE/heads"))
    quantize(tmp_path / "heads", tmp_path / "converted", dtype="bf16")
    quantize(TRAINED, tmp_path / "both", drafts=(f"{kind}:{tmp_path / 'converted'}",))
    with LoadedPackage(tmp_path / "both") as loaded:
        level = loaded.levels[-1]
        assert (level.record.kind, level.record.codec, level.record.num_draft_tokens) == (kind, "package", NUM_HEADS)
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
        ("hydra", {"hydra_head_arch": "eagle-attn"}, 'is "eagle-attn"; mxconv supports mlp, prefix-mlp'),
        ("hydra", {"hidden_state_offset": -1}, "hidden_state_offset is -1; an integer from 0"),
        (
            "hydra",
            {"grounded_heads": False},
            r"tensor hydra_mlp.0.0.linear.weight has shape \(64, 128\); config.json requires \(64, 64\)",
        ),
        (
            "hydra-alone",
            {"grounded_heads": True},
            r"tensor hydra_mlp.0.0.linear.weight has shape \(64, 64\); config.json requires \(64, 128\)",
        ),
        ("hydra", {"hydra_head_arch": "prefix-mlp"}, "hydra_num_heads is 3; at most 0 is required"),
    ],
)
def test_heads_that_are_refused(
    layout: str, changes: dict[str, Any], message: str, package: Path, tmp_path: Path
) -> None:
    write_heads(tmp_path / "heads", layout, TARGET, **changes)
    with pytest.raises(ModelError, match=message):
        LoadedPackage(package, ["target"], drafts=specs(tmp_path, f"{kind_of(layout)}:HERE/heads"))
