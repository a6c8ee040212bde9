"""mxconv: any 16-bit LLM checkpoint as its own draft, with proof that nothing was lost.

import mxconv

model = mxconv.load("package")
print(model.generate("Once upon a time", max_new_tokens=64).text)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mxconv.decode import load

__version__ = "0.2.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    """`load`, imported when it is first asked for: converting needs no decoder, and `--help` needs nothing."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mxconv.decode import load

    return load
