"""Checkpoints whose weights another quantizer has rounded for good: refused, by the tensors that show it."""

from typing import Any

from mxconv.checkpoint.source import Checkpoint
from mxconv.errors import CheckpointError

QUANTIZERS = {  # how the name of a tensor ends that only this quantizer writes
    ".qweight": "GPTQ or AWQ",
    ".qzeros": "GPTQ or AWQ",
    ".absmax": "bitsandbytes",
    ".quant_map": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".weight_packed": "compressed-tensors",
    ".weight_scale_2": "ModelOpt",
}


def check_quantizer(checkpoint: Checkpoint) -> None:
    """Refuse what GPTQ, AWQ, bitsandbytes and their like have written.

    Raises:
        CheckpointError: a tensor is theirs; the first one is named.
    """
    for name, tensor in checkpoint.tensors.items():
        for ending, quantizer in QUANTIZERS.items():
            if name.endswith(ending):
                method = _method(checkpoint.config)
                raise CheckpointError(
                    f"{tensor.path}: tensor {name} is {tensor.dtype} {list(tensor.shape)} of {quantizer}"
                    f"{f' (quant_method {method})' if method else ''}; weights of 16 bits, FP8 with block scales or "
                    "gpt-oss's MXFP4 are required. Convert the model that it was made from."
                )


def _method(config: dict[str, Any] | None) -> str:
    found = (config or {}).get("quantization_config")
    return str(found.get("quant_method", "")) if isinstance(found, dict) else ""
