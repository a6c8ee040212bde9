"""Drafts on a target with recurrent states: shared, of their own, nested, skipping, in trees; nothing changes."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from checkpoints import write_tiny_tokenizer

from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling
from mxconv.verification.decode_proof import verify_decoding

pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
PROMPTS = ["Once", "the sun is A b"]
DRAWN = Selection(Sampling(temperature=0.8), seed=7)


@pytest.fixture(scope="module", params=["lfm2", "mamba2", "qwen3_5"])
def package(
    request: pytest.FixtureRequest, family_of: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Each kind of state in turn, converted."""
    folder = tmp_path_factory.mktemp("recurrent")
    source = copytree(family_of(request.param).folder, folder / "source")
    write_tiny_tokenizer(source / "tokenizer.json", 96)
    with open_checkpoint(source) as checkpoint:
        convert(checkpoint, folder / "package", QuantizeOptions(codec="bsfp"))
    return folder / "package"


@pytest.mark.parametrize(
    ("drafts", "lengths", "tree", "kernel"),
    [
        ((), [4], 8, None),
        ((), [4], 8, "numpy"),
        (("layer-skip:m1+2", "stand"), [3, 2, 2], 6, None),
        (("streaming,sink=1,window=3",), "auto", "auto", None),
        (("checkpoint:{source}", "prompt-lookup"), [3, 2, 1], "chain", "numpy"),
    ],
    ids=[
        "a tree of the self-draft", "by NumPy", "a level that skips states below it", "auto",
        "a model with states of its own",
    ],
)  # fmt: skip
def test_nothing_changes_with_drafts_of_a_target_with_states(
    package: Path, drafts: tuple[str, ...], lengths: Any, tree: Any, kernel: str | None
) -> None:
    specs = [parse_draft(draft.format(source=package.parent / "source")) for draft in drafts]
    with LoadedPackage(package, kernel=kernel, num_threads=2, drafts=specs) as loaded:
        hierarchy = Hierarchy(loaded.levels, lengths, None if lengths == "auto" else [0.0], tree)
        for selection in (Selection(), DRAWN):
            record = verify_decoding(loaded, hierarchy, PROMPTS, 12, selection)
            assert record.num_tokens > 0
            assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)
        generation = hierarchy.generate(loaded.tokenizer.encode(PROMPTS[1]), 12)
        if lengths != "auto":  # which may find that nothing pays
            assert sum(level.num_proposed for level in generation.trace.statistics) > 0


def test_a_draft_whose_layers_change_studies_on_the_shared_states(package: Path) -> None:
    with LoadedPackage(package, ["target"], kernel="numpy", drafts=[parse_draft("swift")]) as loaded:
        hierarchy = Hierarchy(loaded.levels, [3], [0.0])
        record = verify_decoding(loaded, hierarchy, PROMPTS, 24)
        assert (record.num_token_mismatches, record.num_logit_mismatches) == (0, 0)
