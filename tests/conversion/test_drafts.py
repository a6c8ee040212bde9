import json
import re
import shutil
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

from mxconv.checkpoint.ngram_file import write_ngram_table
from mxconv.errors import CheckpointError, MxconvError, PackageError
from mxconv.model.loader import LoadedPackage
from mxconv.speculative.hierarchy import Hierarchy
from mxconv.train.ngram import train_ngram
from mxconv.verify import verify


def test_a_draft_travels_in_a_folder_of_its_own_and_is_verified_with_the_rest(tmp_path: Path) -> None:
    target = write_tiny_llama(tmp_path / "m")
    small = write_tiny_llama(tmp_path / "small", hidden_size=32, seed=1, num_shards=2)
    quantize(write_tiny_llama(tmp_path / "mini", hidden_size=16), tmp_path / "packed", codec="bsfp")
    manifest = quantize(
        target,
        tmp_path / "p",
        drafts=(f"checkpoint:{small},num_draft_tokens=3", f"package:{tmp_path / 'packed'},confidence=0.5"),
    )
    records = [(level.kind, level.codec, level.num_draft_tokens, level.confidence) for level in manifest.levels[2:]]
    assert records == [("model", "bf16", 3, 0.4), ("model", "package", 8, 0.5)]
    assert {path.name for path in (tmp_path / "p/drafts/1-small").iterdir()} == {p.name for p in small.iterdir()}
    assert verify(tmp_path / "p/drafts/2-packed").lossless
    assert verify(tmp_path / "p").ok
    (tmp_path / "p/drafts/1-small/generation_config.json").write_bytes(b"{" + b" " * 36 + b"}")
    assert verify(tmp_path / "p").damaged_files == ["drafts/1-small/generation_config.json"]


def error_of(folder: Path, draft: str) -> str:
    with pytest.raises(MxconvError) as caught:
        quantize(folder, folder.with_name("p"), drafts=(draft,))
    assert not folder.with_name("p.partial").exists()
    return str(caught.value)


def test_a_draft_with_another_tokenizer_is_recorded_as_such_and_trusted_less(tmp_path: Path) -> None:
    folder, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d")
    changed = json.loads((draft / "tokenizer.json").read_text())
    changed["model"]["vocab"]["~"] = 95
    (draft / "tokenizer.json").write_text(json.dumps(changed))
    level = quantize(folder, tmp_path / "other", drafts=(f"checkpoint:{draft}",)).levels[-1]
    assert (level.shares, level.confidence) == ([], 0.65)
    (draft / "tokenizer.json").unlink()
    assert error_of(folder, f"checkpoint:{draft}") == (
        f"--draft {draft}: it has no tokenizer.json; both are required, to translate between them through text. "
        "Copy it from the model's source."
    )


def test_a_draft_may_be_padded_to_more_rows_but_every_token_needs_one(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    padded = write_tiny_llama(tmp_path / "d", vocab_size=128)
    shutil.copy(folder / "tokenizer.json", padded / "tokenizer.json")
    assert quantize(folder, tmp_path / "padded", drafts=(f"checkpoint:{padded}",)).levels[-1].shares == ["tokenizer"]
    short = write_tiny_llama(tmp_path / "s", vocab_size=64)
    shutil.copy(folder / "tokenizer.json", short / "tokenizer.json")
    assert error_of(folder, f"checkpoint:{short}") == (
        f"--draft {short}: {short} has tokens up to 95 and vocab_size 64; a row for each token is required. "
        "Choose another model."
    )


def test_look_ups_and_variants_are_levels_without_files_of_their_own(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    write_ngram_table(train_ngram([folder / "config.json"], folder, min_count=1), tmp_path / "words.table")
    drafts = ("layer-skip:a0+m1", "streaming:sink=2,window=9", f"ngram:{tmp_path / 'words.table'},confidence=0.2")
    manifest = quantize(folder, tmp_path / "p", drafts=drafts)
    skip, stream, table = manifest.levels[2:]
    assert (skip.name, skip.kind, skip.skipped, skip.shares) == (
        "layer-skip", "layer-skip", "a0+m1", ["weights", "kv_cache", "tokenizer"],
    )  # fmt: skip
    assert (stream.kind, stream.sink, stream.window, stream.path) == ("streaming", 2, 9, None)
    assert (table.kind, table.path, table.confidence) == ("ngram", "drafts/3-words/words.table", 0.2)
    assert verify(tmp_path / "p").ok
    with LoadedPackage(tmp_path / "p") as loaded:
        generation = Hierarchy(loaded.levels).generate([5, 6, 7], 20)
        plain = Hierarchy(loaded.levels[:1]).generate([5, 6, 7], 20)
        assert generation.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("drafts", "message"),
    [
        (
            ("prompt-lookup", "streaming"),
            "--draft prompt-lookup: a look-up, with streaming below it; only a model can use a draft. "
            "Give look-ups last.",
        ),
        (("layer-skip:9",), "skipped layers '9': layer 9; layers of the model, 0 to 1, are required. Name layers as"),
        (("ngram:/nowhere/table",), "/nowhere/table: no such file; a readable file is required."),
    ],
)
def test_levels_that_cannot_stand_where_they_are_put_are_refused(
    tmp_path: Path, drafts: tuple[str, ...], message: str
) -> None:
    with pytest.raises(MxconvError, match=re.escape(message)):
        quantize(write_tiny_llama(tmp_path / "m"), tmp_path / "p", drafts=drafts)


def test_a_table_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    folder, other = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "o", vocab_size=90)
    write_ngram_table(train_ngram([folder / "config.json"], other, min_count=1), tmp_path / "table")
    with pytest.raises(
        CheckpointError, match=r"table: its tokens are of a tokenizer\.json with SHA-256 .*Run `mxconv train"
    ):
        quantize(folder, tmp_path / "p", drafts=(f"ngram:{tmp_path / 'table'}",))


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_damaged_companion_of_a_draft_is_our_error(tmp_path: Path, name: str) -> None:
    folder, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d")
    (draft / name).write_text("{")
    with pytest.raises(CheckpointError, match=f"{draft}/{name}: no valid JSON in UTF-8"):
        quantize(folder, tmp_path / "p", drafts=(f"checkpoint:{draft}",))


def test_a_draft_of_other_dtypes_is_refused(tmp_path: Path) -> None:
    folder, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d", dtype="F32")
    assert error_of(folder, f"checkpoint:{draft}") == (
        f"--draft checkpoint:{draft}: holds F32; BF16 or F16 safetensors are required. "
        "Convert it first and use --draft package:PATH."
    )


def test_a_single_file_is_no_draft(tmp_path: Path) -> None:
    folder, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d") / "model.safetensors"
    assert error_of(folder, f"checkpoint:{draft}") == (
        f"--draft checkpoint:{draft}: no config.json; a folder with it and the weights is required. "
        "Pass the folder of the model."
    )


def test_a_package_without_its_target_is_no_draft(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "m")
    quantize(folder, tmp_path / "d", target="reference")
    with pytest.raises(PackageError) as caught:
        quantize(folder, tmp_path / "p", drafts=(f"package:{tmp_path / 'd'}",))
    assert str(caught.value) == (
        f"{tmp_path / 'd'}: references its target; a draft must be whole. Convert it with its target."
    )


def test_a_draft_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert error_of(write_tiny_llama(tmp_path / "m"), f"package:{tmp_path}/none").startswith(
        f"{tmp_path}/none/mxconv.json: no such file;"
    )
