"""Adapters (LoRA and its like): changes of another model's weights, which alone are no model."""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import read_json_object
from mxconv.checkpoint.tensor import SourceTensor
from mxconv.errors import CheckpointError

CONFIG_FILE = "adapter_config.json"
FILES = (CONFIG_FILE, "adapter_model*", "*adapters.safetensors", "pytorch_lora_weights*")  # peft, mlx-lm, diffusers
# names of peft's kinds, those of mlx-lm in small letters, those of diffusers and kohya with up and down
_TENSOR = re.compile(
    r"(^|[._])(lora_([AaBbE]|up|down|magnitude_vector|embedding_[AB])|lora(_linear_layer)?\.(up|down)|ia3_l|"
    r"vera_lambda_[bd]|b?oft_\w|hada_w[12]\w*|lokr_w[12]\w*|adaption_(gate|prompt))([._]|$)|^base_model\.model\.|"
    r"^prompt_embeddings\b"
)
UNMERGED = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT")


def is_adapter_file(name: str) -> bool:
    """Whether a file of this name belongs to an adapter."""
    return any(fnmatchcase(name, pattern) for pattern in FILES)


def check_no_adapter(
    source: str, root: Path, tensors: Mapping[str, SourceTensor], config: Mapping[str, Any] | None
) -> None:
    """Raises CheckpointError where a tensor is an adapter's, alone or beside the weights that it changes; a model whose
    config.json describes adapters (`vision_lora`, say) is whole with them."""
    if config is not None and any(key.endswith("_lora") for key in config):
        return
    for name, tensor in tensors.items():
        if _TENSOR.search(name):
            raise adapter_error(source, root, f"{tensor.path}: tensor {name} is of")


def adapter_error(source: str, root: Path, found: str) -> CheckpointError:
    """The error that names the base of an adapter, by the adapter_config.json in `root`, and says how both are merged;
    `found` begins its message."""
    path = root / CONFIG_FILE
    config = read_json_object(path, unique_keys=False) if path.is_file() else {}
    base, kind = config.get("base_model_name_or_path") or config.get("model"), config.get("peft_type")
    of, name = (repr(base[:200]),) * 2 if isinstance(base, str) else ("another model", "BASE")
    remedy = (
        f"Merge it first, with peft: model = AutoModelForCausalLM.from_pretrained({name}); model = "
        f"PeftModel.from_pretrained(model, {source!r}).merge_and_unload(); model.save_pretrained('merged'). Then "
        "convert that folder."
    )
    if kind in UNMERGED:
        remedy = f"One of the type {kind} cannot be merged into weights: convert {of} without it."
    return CheckpointError(f"{found} an adapter of {of}; the weights of a whole model are required. {remedy}")
