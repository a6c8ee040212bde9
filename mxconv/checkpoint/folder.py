"""Which files of a model folder are its weights, which go along with them, and which shard holds which tensor.

The same rules serve a local folder and the listing of a Hub repository. safetensors win over .bin, and the
Hugging Face layout over `consolidated*` copies of the same weights. An index is checked against its shards both ways.
Adapters (LoRA and its like) are changes of another model's weights, which alone are no model: they are refused.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mxconv.checkpoint.regular_file import read_json_object, stays_inside
from mxconv.checkpoint.tensor import SourceTensor, WeightFile
from mxconv.errors import CheckpointError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
LEGACY_FILE = "pytorch_model.bin"
HEADS_FILE = "medusa_lm_head.pt"
LEGACY_INDEX_FILE = "pytorch_model.bin.index.json"
SUFFIXES = (".safetensors", ".bin", ".gguf")
PACKAGE_FILE = "mxconv.json"  # the manifest of a package
SNAPSHOTS = "snapshots"  # the folder of a Hub cache's repository that holds its commits
ADAPTER_FILE = "adapter_config.json"
# of peft, mlx-lm, diffusers
ADAPTER_FILES = (ADAPTER_FILE, "adapter_model*", "*adapters.safetensors", "pytorch_lora_weights*")
# names of peft's kinds, those of mlx-lm in small letters, those of diffusers and kohya with up and down
_ADAPTER_TENSOR = re.compile(
    r"(^|[._])(lora_([AaBbE]|up|down|magnitude_vector|embedding_[AB])|lora(_linear_layer)?\.(up|down)|ia3_l|"
    r"vera_lambda_[bd]|b?oft_\w|hada_w[12]\w*|lokr_w[12]\w*|adaption_(gate|prompt))([._]|$)|^base_model\.model\.|"
    r"^prompt_embeddings\b"
)
UNMERGED_ADAPTERS = ("PROMPT_TUNING", "PREFIX_TUNING", "P_TUNING", "MULTITASK_PROMPT_TUNING", "ADAPTION_PROMPT")
# of the small files, those that say what the weights are and are not taken along
SIGNS = (ADAPTER_FILE, "hf_quant_config.json")
_PART = re.compile(r"-0*(?P<number>[1-9]\d*)-of-0*(?P<count>[1-9]\d*)\.(safetensors|bin)$")

TOKENIZER_FILE, MODEL_FILE = "tokenizer.json", "tokenizer.model"
TEMPLATES_FOLDER = "additional_chat_templates"
COMPANION_PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer*.*",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
    "chat_template.*",
    f"{TEMPLATES_FOLDER}/*.jinja",
    "processor_config.json",
    "vocab.txt",
    "tekken.json",
    "*.tiktoken",
    "*.model",
    "LICENSE*",
)


@dataclass(frozen=True)
class Weights:
    """The weight files of one checkpoint, as paths relative to its folder."""

    shards: tuple[str, ...]
    weight_map: dict[str, str] | None = None  # tensor name to shard; None for a single file
    index: str | None = None
    is_legacy: bool = False


def companions(names: Iterable[str]) -> list[str]:
    """Those of the names that a converted model needs unchanged: configuration, tokenizer, licence. Sorted."""
    return sorted(
        name
        for name in names
        if any(fnmatchcase(name, pattern) and name.count("/") == pattern.count("/") for pattern in COMPANION_PATTERNS)
    )


def small_files(names: Iterable[str]) -> list[str]:
    """Those of the names that must be at hand before weights are chosen, sorted."""
    names = list(names)
    top = [name for name in names if "/" not in name]
    return sorted({*companions(names), *index_names(top), *(name for name in top if name in SIGNS)})


def index_names(names: Iterable[str]) -> list[str]:
    """Those of the names that are an index of shards, sorted."""
    return sorted(name for name in names if name.endswith(".safetensors.index.json") or name == LEGACY_INDEX_FILE)


def choose_weights(root: Path, names: Iterable[str], label: str) -> Weights:
    """Choose the weight files.

    Args:
        root: the folder; only index files are read from it.
        names: the names of the files directly in the folder, or in the repository that it will mirror.
        label: what the errors call it: a path or a Hub id.

    Raises:
        CheckpointError: there are no weights, or several sets of them, or an index is refused.
    """
    names = set(names)
    if PACKAGE_FILE in names:
        raise CheckpointError(
            f"{label}: holds {PACKAGE_FILE}, so it is a package that mxconv wrote; a model's own weights are required. "
            "Give the model that it was converted from, or write those first: mxconv export PACKAGE --to safetensors"
        )
    indexes = _without_consolidated(name for name in index_names(names) if name != LEGACY_INDEX_FILE)
    if INDEX_FILE in indexes:
        indexed = _from_index(root, INDEX_FILE, is_legacy=False)
        # beside a single file that it does not name, an index is left over from an earlier export
        if SINGLE_FILE not in names or SINGLE_FILE in indexed.shards:
            return indexed
    if SINGLE_FILE in names:
        return Weights((SINGLE_FILE,))
    files = _without_consolidated(n for n in names if n.endswith(".safetensors") and not is_adapter_file(n))
    if len(indexes) == 1:
        return _from_index(root, indexes[0], is_legacy=False)
    if not indexes and (files or not {LEGACY_FILE, LEGACY_INDEX_FILE} & names):
        for name in files or sorted(names):
            check_no_part(name, f"{label}: holds {name},")
    if len(files) == 1 and not indexes:
        return Weights((files[0],))
    if files:
        found = f"{len(indexes)} indexes" if indexes else "no index"
        raise CheckpointError(
            f"{label}: holds {len(files)} .safetensors files ({_listed(files)}) and {found}; one file or one index "
            f"is required. Pass one of the files, or add the {INDEX_FILE} that belongs to them."
        )
    if LEGACY_INDEX_FILE in names and LEGACY_FILE not in names:
        return _from_index(root, LEGACY_INDEX_FILE, is_legacy=True)
    for file in (LEGACY_FILE, HEADS_FILE):
        if file in names:
            return Weights((file,), is_legacy=True)
    if any(is_adapter_file(name) for name in names):
        raise adapter_error(label, root, f"{label}: holds")
    found, remedy = _no_weights(root, names)
    raise CheckpointError(
        f"{label}: {found}; {SINGLE_FILE}, shards with an index, or {LEGACY_FILE} is required. {remedy}"
    )


def holds_weights(path: Path) -> bool:
    """Whether something at a path looks like a checkpoint, by names alone."""
    try:
        paths = list(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    except OSError:  # a folder that may not be read
        return False
    return any(found.name == "config.json" or found.suffix.lower() in SUFFIXES for found in paths)


def check_no_part(name: str, found: str) -> None:
    """Raises CheckpointError, whose message begins with `found`, where a file's name is of one of several parts."""
    part = _PART.search(name)
    if part is not None and int(part["count"]) > 1:
        raise CheckpointError(
            f"{found} part {part['number']} of {part['count']} of a model; all parts, and the index beside them, are "
            "required. Download the missing files, and give the folder that holds them."
        )


def _no_weights(root: Path, names: set[str]) -> tuple[str, str]:
    """What a folder without weights holds, and what to do."""
    folders = sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    if SNAPSHOTS in folders:
        commits = sorted(path.name for path in (root / SNAPSHOTS).iterdir())
        repo_id = root.name.removeprefix("models--").replace("--", "/")
        remedy = f"Give its id, {repo_id}, or the folder of a commit."
        return f"is a folder of the Hub cache, with commits in {SNAPSHOTS} ({_listed(commits)})", remedy
    if models := [name for name in folders if holds_weights(root / name) or (root / name / SNAPSHOTS).is_dir()]:
        return f"holds no weights, but folders with models ({_listed(models)})", "Give one of these folders."
    found = [*sorted(names), *(f"{name}/" for name in folders)]
    return f"holds no weights, only {_listed(found)}" if found else "is empty", (
        "Check that this is a model in the Hugging Face layout. A .gguf file is read when its own path is given; "
        "Other .pt files, .pth and .onnx are not read."
    )


def _from_index(root: Path, index: str, *, is_legacy: bool) -> Weights:
    weight_map = read_index(root / index)
    return Weights(tuple(sorted(set(weight_map.values()))), weight_map, index, is_legacy)


def _without_consolidated(names: Iterable[str]) -> list[str]:
    """Sorted, without Mistral's own copies of the weights unless there is nothing else."""
    every = sorted(names)
    return [name for name in every if not name.startswith("consolidated")] or every


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def read_index(path: Path) -> dict[str, str]:
    """Tensor name to shard, as a relative path with forward slashes that stays in the index's folder. Raises
    CheckpointError where it is no index, or a path is absolute or climbs out of the folder."""
    weight_map = read_json_object(path, unique_keys=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path}: has no weight_map, or an empty one; an object of tensor names and shard names is required. "
            "Download or export the checkpoint again."
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or not stays_inside(shard):
            raise CheckpointError(
                f"{path}: tensor {name!r} is in {shard!r}; a relative path inside the index's folder is required. "
                "Do not use this checkpoint unless you know who made it."
            )
    return {name: posixpath.normpath(shard) for name, shard in weight_map.items()}


def resolve_shard(index_path: Path, shard: str) -> Path:
    """Where a shard lies. Its folder must be inside the index's; the file itself may be a symbolic link. Raises
    CheckpointError where there is no such file, or a linked folder leads outside."""
    path = index_path.parent / shard
    if not os.path.lexists(path):
        raise CheckpointError(
            f"{index_path}: names shard {shard!r}, which is not there; every shard is required. "
            "Download the missing file."
        )
    folder, root = path.parent.resolve(), index_path.parent.resolve()
    if not folder.is_relative_to(root):
        raise CheckpointError(
            f"{index_path}: shard {shard!r} lies in {folder}; it must lie inside the index's folder. "
            "Do not use this checkpoint unless you know who made it."
        )
    return path


def check_index(index_path: Path, weight_map: Mapping[str, str], shards: Mapping[str, WeightFile]) -> None:
    """Compare an index, tensor name to shard, with every shard that it names, opened.

    Raises:
        CheckpointError: a tensor is in two shards, or not in the index, or not where the index says.
    """
    holder: dict[str, str] = {}
    for shard, file in shards.items():
        for name in file.entries:
            if name in holder:
                raise CheckpointError(
                    f"{index_path}: tensor {name!r} is in both {holder[name]} and {shard}; it must be in one shard. "
                    "Download or export the checkpoint again."
                )
            if name not in weight_map:
                raise CheckpointError(
                    f"{file.path}: holds tensor {name!r}, which {index_path.name} does not list; "
                    "the index must list every tensor. Download or export the checkpoint again."
                )
            holder[name] = shard
    for name, shard in weight_map.items():
        if holder.get(name) != shard:
            found = f"it is in {holder[name]}" if name in holder else "no shard has it"
            raise CheckpointError(
                f"{index_path}: says that tensor {name!r} is in {shard}, but {found}; index and shards must agree. "
                "Download or export the checkpoint again."
            )


def is_adapter_file(name: str) -> bool:
    """Whether a file of this name belongs to an adapter."""
    return any(fnmatchcase(name, pattern) for pattern in ADAPTER_FILES)


def check_no_adapter(
    source: str, root: Path, tensors: Mapping[str, SourceTensor], config: Mapping[str, Any] | None
) -> None:
    """Raises CheckpointError where a tensor is an adapter's, alone or beside the weights that it changes; a model whose
    config.json describes adapters (`vision_lora`, say) is whole with them."""
    if config is not None and any(key.endswith("_lora") for key in config):
        return
    for name, tensor in tensors.items():
        if _ADAPTER_TENSOR.search(name):
            raise adapter_error(source, root, f"{tensor.path}: tensor {name} is of")


def adapter_error(source: str, root: Path, found: str) -> CheckpointError:
    """The error that names the base of an adapter, by the adapter_config.json in `root`, and says how both are merged;
    `found` begins its message."""
    path = root / ADAPTER_FILE
    config = read_json_object(path, unique_keys=False) if path.is_file() else {}
    base, kind = config.get("base_model_name_or_path") or config.get("model"), config.get("peft_type")
    of, name = (repr(base[:200]),) * 2 if isinstance(base, str) else ("another model", "BASE")
    remedy = (
        f"Merge it first, with peft: model = AutoModelForCausalLM.from_pretrained({name}); model = "
        f"PeftModel.from_pretrained(model, {source!r}).merge_and_unload(); model.save_pretrained('merged'). Then "
        "convert that folder."
    )
    if kind in UNMERGED_ADAPTERS:
        remedy = f"One of the type {kind} cannot be merged into weights: convert {of} without it."
    return CheckpointError(f"{found} an adapter of {of}; the weights of a whole model are required. {remedy}")
