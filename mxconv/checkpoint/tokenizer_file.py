"""The tokenizer of a model's folder: its tokenizer.json, or what its tokenizer.model stands for."""

from pathlib import Path

from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.checkpoint.sentencepiece.model_file import MODEL_FILE
from mxconv.checkpoint.sentencepiece.tokenizer import derive_tokenizer

TOKENIZER_FILE = "tokenizer.json"
# of tokenizers that mxconv does not read, in the order in which a message names them
OTHER_FILES = ("tekken.json", "tiktoken.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json", "vocab.txt")


def read_tokenizer_json(folder: Path) -> bytes | None:
    """The content of a tokenizer.json, derived where there is only a tokenizer.model; None where there is neither.

    Raises:
        CheckpointError: the tokenizer.model is damaged, or of a kind that mxconv does not read.
    """
    if (path := folder / TOKENIZER_FILE).is_file():
        check_regular_file(path)
        with open_file(path) as file:
            return file.read()
    return derive_tokenizer(folder) if (folder / MODEL_FILE).is_file() else None
