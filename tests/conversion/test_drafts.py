import json
import shutil
from pathlib import Path

import pytest
from checkpoints import write_tiny_llama
from packages import quantize

from mxconv.conversion.drafts import DraftSpec, parse_draft
from mxconv.errors import CheckpointError, MxconvError, PackageError
from mxconv.verify import verify


def test_a_specification_names_kind_place_and_parameters() -> None:
    assert parse_draft("checkpoint:a/b") == DraftSpec("checkpoint", "a/b")
    assert parse_draft("package:C:/x,num_draft_tokens=3,confidence=0.25") == DraftSpec("package", "C:/x", 3, 0.25)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("small", "--draft small: kind 'small'; checkpoint:PATH_OR_ID or package:PATH_OR_ID is required."),
        ("model:x", "--draft model:x: kind 'model'; checkpoint:PATH_OR_ID or package:PATH_OR_ID is required."),
        ("package:", "--draft package:: kind 'package'; checkpoint:PATH_OR_ID or package:PATH_OR_ID is required."),
        ("package:x,depth=2", "parameter 'depth'; num_draft_tokens or confidence is required."),
        ("package:x,num_draft_tokens=many", "num_draft_tokens is 'many'; a number is required."),
        ("package:x,confidence=", "confidence is ''; a number is required."),
        ("package:x,num_draft_tokens=0", "num_draft_tokens 0, confidence 0.4; 1 to 64 and 0 to 1 are required."),
        ("package:x,num_draft_tokens=65", "num_draft_tokens 65, confidence 0.4; 1 to 64 and 0 to 1 are required."),
        ("package:x,confidence=nan", "num_draft_tokens 8, confidence nan; 1 to 64 and 0 to 1 are required."),
    ],
)
def test_a_specification_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(MxconvError) as caught:
        parse_draft(text)
    assert str(caught.value).startswith(f"--draft {text}: ") and str(caught.value).endswith(message)


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


def test_a_draft_needs_the_vocabulary_of_the_target(tmp_path: Path) -> None:
    folder, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d")
    changed = json.loads((draft / "tokenizer.json").read_text())
    changed["model"]["vocab"]["~"] = 95000
    (draft / "tokenizer.json").write_text(json.dumps(changed))
    assert error_of(folder, f"checkpoint:{draft}") == (
        f"--draft {draft}: its tokenizer.json differs from that of {folder}; the same vocabulary is required. "
        "Choose a draft of the same family."
    )


def test_a_draft_needs_the_vocabulary_size_of_the_target(tmp_path: Path) -> None:
    folder, draft = write_tiny_llama(tmp_path / "m"), write_tiny_llama(tmp_path / "d", vocab_size=64)
    shutil.copy(folder / "tokenizer.json", draft / "tokenizer.json")
    assert error_of(folder, f"checkpoint:{draft}") == (
        f"--draft {draft}: vocab_size 64, and 96 in {folder}; the same size is required."
    )


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
