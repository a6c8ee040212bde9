"""Opening whatever is to be converted: a GGUF file, whose names follow from descriptions, or any other checkpoint."""

import json
from pathlib import Path
from types import MappingProxyType

from mxconv.checkpoint.source import Checkpoint, open_checkpoint


def open_source(source: str | Path, *, revision: str | None = None) -> Checkpoint:
    """Open a .gguf file, or whatever `open_checkpoint` takes, and check its structure.

    Raises:
        CheckpointError: it cannot be found, reached or read, or it contradicts itself.
    """
    path = Path(source)
    if path.suffix.lower() != ".gguf" or path.is_dir() or revision is not None or not path.exists():
        return open_checkpoint(source, revision=revision)
    return _open_gguf(str(source), path.absolute())


def _open_gguf(source: str, path: Path) -> Checkpoint:
    """A whole model in one file: its configuration and tokenizer are made from the file's keys."""
    from mxconv.gguf.gguf_file import GgufFile, GgufSourceTensor  # late: imports the gguf library
    from mxconv.gguf.gguf_tokenizer import derive_tokenizer, left_out

    file = GgufFile(path)

    def derive_files() -> dict[str, bytes]:
        return {"config.json": json.dumps(file.config, indent=1).encode(), **derive_tokenizer(file.values, path)}

    return Checkpoint(
        id=source,
        commit=None,
        root=path.parent,
        weight_files=(path,),
        companion_files=(),
        index_file=None,
        tensors=MappingProxyType({name: GgufSourceTensor(name, file) for name in sorted(file.entries)}),
        config=file.config,
        container="GGUF",
        _files=(file,),
        derive_files=derive_files,
        note=None if (why := left_out(file.values)) is None else f"no tokenizer.json is written: {why}.",
    )
