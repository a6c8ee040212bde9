"""Which engines beside mxconv's are installed here, how they were compiled, and what instructions all may use."""

import os
import sys
from importlib.metadata import version
from importlib.util import find_spec

from rich.console import Console

from mxconv.kernels.engine import native_names


def has(module: str, package: str, console: Console) -> bool:
    if find_spec(module.split(".")[0]) is None or find_spec(module) is None:
        console.print(f"{package}: not installed, left out; pip install {package}")
        return False
    console.print(f"{package} {version(package)}")
    return True


def hold_to_avx2() -> None:
    """Set what mxconv and oneDNN read; the contenders' processes inherit it."""
    kernel = next((name for name in native_names() if name.startswith("avx") and "512" not in name), None)
    if kernel is None:
        sys.exit("--avx2: this processor has no AVX2")
    os.environ["MXCONV_KERNEL"] = kernel
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX2" if kernel == "avx2" else "AVX2_VNNI"


def say_how_llama_was_built(console: Console, without_avx512: bool = False) -> None:
    import llama_cpp

    features = llama_cpp.llama_print_system_info().decode()
    console.print(features.strip(" |"))
    if without_avx512 and "AVX512" in features:
        sys.exit("--avx2: this llama.cpp was compiled for AVX-512; compile it as compare_peers.py says")
    for name in ("REPACK", "LLAMAFILE"):
        if f"{name} = 1" not in features:
            console.print(f"llama.cpp was compiled without {name}: its times are not its best (see compare_peers.py)")
