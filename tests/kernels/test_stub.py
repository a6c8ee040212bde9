"""The stub of the extension module is what nanobind makes of it: nobody writes its signatures twice.

`python tests/kernels/test_stub.py` writes it anew.
"""

import re
from pathlib import Path

import pytest

_native = pytest.importorskip("mxconv.kernels._native", reason="the extension is not built on this machine")
stubgen = pytest.importorskip("nanobind.stubgen", reason="nanobind is not installed")

STUB = Path(__file__).parents[2] / "mxconv" / "kernels" / "_native.pyi"


def made_stub() -> str:
    """As nanobind writes it, but for where arrays lie, which NumPy's types cannot say."""
    generator = stubgen.StubGen(_native)
    generator.put(_native)
    return re.sub(r"Annotated\[(NDArray\[[\w.]+\]), dict\([^)]*\)\]", r"\1", generator.get())


def test_the_stub_is_that_of_the_module() -> None:
    assert STUB.read_text() == made_stub(), f"python {Path(__file__).name} writes the stub of the module that was built"


if __name__ == "__main__":
    STUB.write_text(made_stub())
