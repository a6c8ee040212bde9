"""Write the golden vectors: `python formats/vectors/generate.py [FOLDER]` (default: beside this file).

Independent of mxconv: Python's standard library alone, one element at a time, from the text of `formats/*.md`. All
output is deterministic. Patterns are hexadecimal numbers, most significant digit first, without separators: 8 digits
for binary32, 4 for BF16 and F16, 2 for bytes, 1 for 4-bit codes. Packed arrays are bytes in
the order they are stored.
"""

import json
import sys
from pathlib import Path

from bsfp import bsfp
from elements import e2m1, int8, vnni8
from experts import experts
from fp8 import fp8
from mxfp4 import mxfp4
from mxint8 import mxint8
from ngram import ngram
from spire import spire

FORMAT_VERSION = 1


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for make in (e2m1, mxfp4, mxint8, bsfp, vnni8, int8, ngram, spire, experts, fp8):
        text = json.dumps({"format_version": FORMAT_VERSION, **make()}, indent=1)
        (folder / f"{make.__name__}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
