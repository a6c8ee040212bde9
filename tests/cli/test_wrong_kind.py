"""A model where a package is required: every command says so, and how it is converted."""

from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf

COMMANDS = {
    "verify": ("verify", "MODEL"),
    "export": ("export", "MODEL", "--to", "gguf", "-o", "OUTPUT"),
    "push": ("push", "MODEL", "me/tiny"),
    "bench decode": ("bench", "decode", "MODEL"),
    "cost": ("cost", "MODEL"),
    "evaluate": ("evaluate", "MODEL", "--texts", "TEXT"),
    "recipe": ("recipe", "MODEL", "-o", "RECIPE"),
    "attest": ("attest", "MODEL", "--private-key", "TEXT"),
    "a draft": ("generate", "PACKAGE", "--prompt", "a", "--draft", "package:MODEL"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["a folder", "a file", "a GGUF file", "a folder with a GGUF file"])
def test_a_model_is_no_package(run: Any, source: Path, package: Path, tmp_path: Path, command: str, kind: str) -> None:
    model = {
        "a folder": source,
        "a file": source / "model.safetensors",
        "a GGUF file": tmp_path / "made" / "a.gguf",
        "a folder with a GGUF file": tmp_path / "made",
    }[kind]
    (tmp_path / "made").mkdir()
    write_gguf(tmp_path / "made" / "a.gguf")
    (tmp_path / "text").write_text("Once")
    named = {
        "OUTPUT": tmp_path / "output",
        "RECIPE": tmp_path / "r.json",
        "TEXT": tmp_path / "text",
        "PACKAGE": package,
        "MODEL": model,
    }
    arguments = [named.get(word, word.replace("MODEL", str(model))) for word in COMMANDS[command]]
    outcome = run(*arguments)
    assert outcome.exit_code == 1
    assert (
        f"{model}: a model, and no package, since it holds no mxconv.json; a package is required. Convert it first: "
        f"mxconv quantize {model}\n"
    ) in outcome.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"made", "text"}


def test_a_package_is_no_model(run: Any, package: Path, tmp_path: Path) -> None:
    for arguments in (
        ("quantize", package, "-o", tmp_path / "p"),
        ("quantize", package, "-o", tmp_path / "p", "--dry-run"),
        ("verify", package, "--source", package),
        ("generate", package, "--prompt", "a", "--draft", f"checkpoint:{package}"),
    ):
        outcome = run(*arguments)
        assert outcome.exit_code == 1
        assert (
            f"{package}: holds mxconv.json, so it is a package that mxconv wrote; a model's own weights are required. "
            "Give the model that it was converted from, or write those first: mxconv export PACKAGE --to safetensors\n"
        ) in outcome.stderr
    assert not (tmp_path / "p").exists()
