"""The tokenizer.json that vocab.json and merges.txt stand for: byte-level BPE, cut by the rule of its class.

Source:
    GPT2Tokenizer and Qwen2Tokenizer of transformers 5.24.
"""

import json
from pathlib import Path

from mxconv.checkpoint.pre_tokenizers import pre_tokenizer_json
from mxconv.checkpoint.regular_file import check_regular_file, read_json_object
from mxconv.checkpoint.tokenizer_json import template
from mxconv.checkpoint.tokenizer_settings import CONFIG_FILE, REMEDY, TokenizerSettings
from mxconv.errors import CheckpointError

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
CUTS = {"GPT2Tokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}  # the rule's name in llama.cpp
END = "<|endoftext|>"  # special in both classes


def derive_from_merges(folder: Path) -> bytes | None:
    """The content of a tokenizer.json; None where a file is missing or the class is another. Raises CheckpointError
    where the files are damaged."""
    files = [folder / VOCABULARY_FILE, folder / MERGES_FILE]
    config = read_json_object(path, unique_keys=False) if (path := folder / CONFIG_FILE).is_file() else {}
    cut = CUTS.get(str(config.get("tokenizer_class")).removesuffix("Fast"))
    if cut is None or not all(file.is_file() for file in files):
        return None
    from tokenizers import Tokenizer, decoders, models, normalizers

    for file in files:
        check_regular_file(file)
    try:
        backend = Tokenizer(models.BPE.from_file(*map(str, files)))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{files[0]}: makes no tokenizer with {MERGES_FILE} ({error}); tokens by text, and pairs of them, are "
            f"required. {REMEDY}"
        ) from error
    backend.decoder = decoders.ByteLevel()
    if cut == "qwen2":
        backend.normalizer = normalizers.NFC()
    settings = TokenizerSettings.read(folder)
    settings.complete(backend)
    backend.add_special_tokens([END] if backend.token_to_id(END) is not None else [])
    around = [
        settings.texts.get(f"{k}_token") if config.get(f"add_{k}_token") is True else None for k in ("bos", "eos")
    ]
    ids = {text: backend.token_to_id(text) or 0 for text in around if text is not None}
    members = {"pre_tokenizer": pre_tokenizer_json(cut), "post_processor": template(around, ids)}
    return json.dumps(json.loads(backend.to_str()) | members, ensure_ascii=False).encode()
