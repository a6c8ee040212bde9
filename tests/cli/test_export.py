"""`mxconv export`: what it prints, and its exit codes. What it writes is tested under tests/interop."""

from pathlib import Path
from typing import Any

import pytest
from checkpoints import write_tiny_llama
from gguf_models import write_model
from packages import quantize


@pytest.fixture(scope="module")
def exportable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    quantize(write_model(folder / "source"), folder / "package")
    return folder / "package"


def test_the_last_line_of_stdout_is_the_object_and_the_rest_goes_to_stderr(
    run: Any, exportable: Path, tmp_path: Path
) -> None:
    outcome = run("export", exportable, "--to", "gguf", "-o", tmp_path / "out", "--json")
    assert outcome.exit_code == 0
    assert len(outcome.stdout.splitlines()) == 1
    result = outcome.json
    files = [tmp_path / "out" / name for name in ("out-BF16.gguf", "out-MXFP4.gguf")]
    assert result.pop("seconds") > 0
    (note,) = result.pop("notes")
    assert result == {
        "output": str(tmp_path / "out"),
        "format": "gguf",
        "files": [path.name for path in files],
        "num_bytes": sum(path.stat().st_size for path in files),
        "num_tensors": 42,
    }
    assert f"note: {note}" in outcome.stderr.replace("\n", " ").replace("  ", " ")


def test_a_tied_embedding_that_is_rounded_with_the_head_is_told(run: Any, tmp_path: Path) -> None:
    for tied in (True, False):
        folder = tmp_path / f"tied-{tied}"
        source = write_tiny_llama(folder / "source", num_hidden_layers=1, tie_word_embeddings=tied)
        assert run("quantize", source, "-o", folder / "package").exit_code == 0
        arguments = ["export", folder / "package", "--to", "safetensors", "-o"]
        outcome = run(*arguments, folder / "draft", "--level", "draft")
        assert outcome.exit_code == 0
        note = "note: model.embed_tokens.weight is also the output head, and one tensor is both: its look-ups are the"
        assert (note in outcome.stderr) == tied
        outcome = run(*arguments, folder / "target")
        assert (outcome.exit_code, outcome.stderr) == (0, "")
