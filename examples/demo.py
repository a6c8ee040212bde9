"""The main job on the embedded models: convert two ways, prove it, look inside, decode with three levels and with five.

make demo
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODELS = Path(__file__).parent / "models"
TARGET, DRAFT = MODELS / "pylib-1.5m", MODELS / "pylib-0.2m"
SPIRE, SPECULATOR = MODELS / "pylib-1.5m-spire", MODELS / "pylib-1.5m-speculator"
PROMPTS = Path(__file__).parent / "prompts.jsonl"


def mxconv(*arguments: str | Path) -> None:
    """Show a command and run it; stop at the first that fails."""
    words = [str(argument) for argument in arguments]
    shown = [f"'{word}'" if " " in word else re.sub(r"/.*/", "", word) for word in words]
    print("\n$ mxconv", *shown, flush=True)
    subprocess.run([sys.executable, "-m", "mxconv.cli.main", *words], check=True)


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="mxconv-demo-"))
    try:
        for codec in ("mxfp4", "bsfp"):
            mxconv("quantize", TARGET, "-o", folder / codec, "--codec", codec, "--draft", f"checkpoint:{DRAFT}")
            mxconv("verify", folder / codec, "--source", TARGET)
        mxconv("inspect", TARGET, "--per", "kind")
        for codec in ("mxfp4", "bsfp"):
            mxconv("generate", folder / codec, "--prompt", "def read(self, path", "--max-new-tokens", "64", "--check")
        five = ("--draft", f"spire:{SPIRE}", "--draft", f"speculator:{SPECULATOR}", "--check")
        mxconv("generate", folder / "bsfp", "--prompt", "def read(self, path", "--max-new-tokens", "64", *five)
        mxconv("verify", folder / "bsfp", "--decode", PROMPTS, "--max-new-tokens", "32")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
