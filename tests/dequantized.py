"""What a package's own codecs say its draft's weights are, by the NumPy reference; and what these make of a text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

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


def state_errors(source: Path, token_ids: Sequence[int], *drafts: Mapping[str, np.ndarray]) -> list[list[float]]:
    """How far the hidden states of a text are from the exact ones after each layer, for each draft, by transformers.

    A draft's tensors take the place of the checkpoint's; the squared errors are summed.
    """
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def states(draft: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
        for name, values in draft.items():
            model.get_parameter(name).data = torch.from_numpy(values)
        with torch.no_grad():
            found = model(torch.tensor([list(token_ids)]), output_hidden_states=True).hidden_states
        return [each[0].numpy() for each in found[1:]]

    exact = states({})
    return [[float(np.square(a - b).sum()) for a, b in zip(states(draft), exact, strict=True)] for draft in drafts]
