"""Which levels of a package are loaded, in which tokens, and every reason to refuse."""

import re
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama, write_tiny_tokenizer
from loaded_packages import logits, pack, rewrite, source_logits, three_levels

from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.errors import ModelError
from mxconv.package.manifest import read_manifest


def test_a_checkpoint_draft_keeps_its_own_configuration(tmp_path: Path) -> None:
    source = write_tiny_llama(tmp_path / "source")
    small = write_tiny_llama(
        tmp_path / "small", seed=1, num_hidden_layers=1, max_position_embeddings=24, tie_word_embeddings=True
    )
    package = pack(source, tmp_path / "package", codec="bsfp", drafts=(f"checkpoint:{small},num_draft_tokens=3",))
    with LoadedPackage(package) as loaded:
        level = loaded.levels[2]
        assert level.record.num_draft_tokens == 3
        assert level.decoder.config.max_position_embeddings == 24
        assert loaded.levels[0].decoder.config.max_position_embeddings == 128
        assert logits(level.decoder).tobytes() == source_logits(small).tobytes()


def test_levels_are_chosen_by_name(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    for names in (["target"], ["target", "small"], ["target", "small", "mxfp4"], ["target", "mxfp4", "small"]):
        with LoadedPackage(package, names) as loaded:
            assert [level.name for level in loaded.levels] == names
    for names in (["targt"], ["target", "bsfp"], [""], []):
        found = ", ".join(names) or "none"
        message = f"{package}: levels {found}; at least one, out of target, mxfp4, small, is required."
        with pytest.raises(ModelError, match=f"^{re.escape(message)}$"):
            LoadedPackage(package, names)


def test_what_an_earlier_version_tuned_is_read_and_ignored(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    with LoadedPackage(package) as loaded:
        own = [level.record for level in loaded.levels]
    tuned = {
        "levels": ["target", "small"], "num_draft_tokens": [3], "confidence": [0.7], "speedup": 1.5,
        "num_prompts": 9, "num_tokens": 500, "cpu": "a processor", "threads": 2, "kernel": "avx2",
    }  # fmt: skip
    rewrite(package, tuned=tuned)
    assert read_manifest(package).tuned == tuned
    with LoadedPackage(package) as loaded:
        assert [level.record for level in loaded.levels] == own
        assert not loaded.lengths_are_given


def test_levels_of_the_same_name_do_not_hide_each_other(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    manifest = read_manifest(package)
    renamed = [level.model_copy(update={"name": "target"}) for level in manifest.levels]
    rewrite(package, levels=renamed)
    with LoadedPackage(package) as loaded:
        assert [level.record.kind for level in loaded.levels] == ["target", "self-draft", "model"]
    with LoadedPackage(package, ["target"]) as loaded:
        assert loaded.levels[0].record.kind == "target"


def replace_small(package: Path, **changes: Any) -> None:
    """Put another small model into the package than was converted."""
    folder = package / "drafts/1-small"
    for path in folder.iterdir():  # they are links into the source
        path.unlink()
    write_tiny_llama(folder, seed=1, **changes)


def test_a_draft_whose_tokenizer_is_not_the_one_it_should_share_is_refused(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    replace_small(package, vocab_size=90)
    rewrite(package)
    with pytest.raises(ModelError) as caught:
        LoadedPackage(package)
    assert str(caught.value) == (
        f"{package}/drafts/1-small/tokenizer.json: differs from that of the level above small, which the manifest says "
        "it shares; the same tokens are required. Convert again."
    )
    with LoadedPackage(package, ["target", "mxfp4"]) as loaded:
        assert len(loaded.levels) == 2


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(96, 90), (90, 96)])
def test_a_token_without_a_row_is_refused(tmp_path: Path, target_rows: int, draft_rows: int) -> None:
    source = write_tiny_llama(tmp_path / "source", vocab_size=target_rows)
    small = write_tiny_llama(tmp_path / "small", vocab_size=draft_rows)
    for folder in (source, small):
        write_tiny_tokenizer(folder / "tokenizer.json", 96)
    package = pack(source, tmp_path / "package")
    with pytest.raises(ModelError) as caught:
        LoadedPackage(package, drafts=[parse_draft(f"checkpoint:{small}")])
    assert str(caught.value) == (
        f"{package}: level small and its target have {draft_rows} and {target_rows} rows of tokens; 96 tokens need 96 "
        "rows in both, 90 are there. Choose a draft of the same family."
    )


def test_a_draft_may_have_padding_but_needs_a_row_for_every_token(tmp_path: Path) -> None:
    package = three_levels(tmp_path)
    tokenizer = (package / "drafts/1-small/tokenizer.json").read_bytes()
    for num_rows in (90, 96, 200):
        replace_small(package, vocab_size=num_rows)
        (package / "drafts/1-small/tokenizer.json").write_bytes(tokenizer)
        rewrite(package)
        if num_rows < 96:
            message = "level small and its target have 90 and 96 rows of tokens; 96 tokens need 96 rows in both, 90 are"
            with pytest.raises(ModelError, match=message):
                LoadedPackage(package)
            continue
        with LoadedPackage(package) as loaded:
            small = loaded.levels[-1]
            assert small.decoder is not None and small.decoder.config.vocab_size == num_rows
            assert small.tokenizer is loaded.tokenizer
