"""What the formats say a package's draft's weights are, in the types of ml_dtypes; and what these make of a text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mxconv.codecs.vnni8 import unpack_nibbles, unpack_quads, unpack_scales
from mxconv.package.package import Package
from mxconv.package.tensor_record import TensorRecord


def dequantized(package: Path) -> dict[str, np.ndarray]:
    """Float32 values of every tensor that the draft has in other bits, by name; of a stack those of all experts."""
    with Package(package) as opened:
        return {
            record.name: np.stack([draft_values(opened, record, each) for each in range(record.stack.num_experts)])
            if record.stack is not None
            else draft_values(opened, record)
            for record in opened.manifest.tensors
            if record.codec != "keep"
        }


def draft_values(package: Package, record: TensorRecord, expert: int | None = None) -> np.ndarray:
    """Of a matrix, or of one expert of a stack."""
    if record.codec == "mxfp4":
        mxfp4 = package.mxfp4(record, expert)
        shape, levels = mxfp4.shape, unpack_nibbles(mxfp4.codes).view(ml_dtypes.float4_e2m1fn)
        scales, block, divisor = unpack_scales(mxfp4.scales).view(ml_dtypes.float8_e8m0fnu), 32, 1.0
    elif record.codec == "mxint8":
        mxint8 = package.mxint8(record)
        shape, levels = mxint8.shape, unpack_quads(mxint8.elements) / np.float32(64)
        scales, block, divisor = unpack_scales(mxint8.scales).view(ml_dtypes.float8_e8m0fnu), 32, 1.0
    else:
        bsfp, segments = package.bsfp(record, expert), record.all_segments
        own = segments[(expert or 0) if len(segments) > 1 else 0]
        magnitudes = np.array(own.levels, np.float32)
        shape, levels = bsfp.shape, np.concatenate([magnitudes, -magnitudes])[unpack_nibbles(bsfp.packed.codes)]
        scales, block = unpack_scales(bsfp.packed.scales).view(ml_dtypes.bfloat16), 128
        divisor = own.rescale_factor
    rows, columns = shape
    values = levels.astype(np.float32) * np.repeat(scales.astype(np.float32), block, axis=1)[:, : levels.shape[1]]
    return values[:rows, :columns] / np.float32(divisor)


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
