"""What a package's own codecs say its draft's weights are, by the NumPy reference."""

from pathlib import Path

import numpy as np

from mxconv.codecs.bsfp.packing import decode_bsfp_draft
from mxconv.codecs.mxfp4 import dequantize_mxfp4
from mxconv.codecs.mxint8 import dequantize_mxint8
from mxconv.codecs.vnni8 import unpack_nibbles, unpack_quads, unpack_scales
from mxconv.package.package import Package


def dequantized(package: Path) -> dict[str, np.ndarray]:
    """Float32 values of every tensor that the draft has in other bits, by name."""
    with Package(package) as opened:
        found = {}
        for record in opened.manifest.tensors:
            if record.codec == "mxfp4":
                stored = opened.mxfp4(record)
                values = dequantize_mxfp4(unpack_nibbles(stored.codes), unpack_scales(stored.scales))
                found[record.name] = values[: stored.shape[0], : stored.shape[1]].copy()
            elif record.codec == "mxint8":
                head = opened.mxint8(record)
                values = dequantize_mxint8(unpack_quads(head.elements), unpack_scales(head.scales))
                found[record.name] = values[: head.shape[0], : head.shape[1]].copy()
            elif record.codec == "bsfp":
                bsfp = opened.bsfp(record)
                found[record.name] = decode_bsfp_draft(bsfp.packed, bsfp.table, bsfp.shape)
        return found
