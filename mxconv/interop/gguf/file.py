"""Writing a GGUF file through the gguf library: keys and tensor list by the library, tensors streamed behind them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from mxconv.interop.gguf.gguf_tensor import GgufTensor
from mxconv.interop.gguf.metadata import Metadata
from mxconv.interop.gguf.stacked_tensor import StackedTensor
from mxconv.interop.gguf.tensors import Level


def write_gguf(
    path: Path,
    metadata: Metadata,
    tensors: Sequence[GgufTensor | StackedTensor],
    name: str,
    level: Level,
    scale_rule: str,
    advance: Callable[[int], None],
) -> None:
    """Write one file.

    Args:
        path: overwritten.
        metadata: architecture and tokenizer.
        tensors: in the order in which they will lie.
        name: of the model, for people.
        level: what the tensors are.
        scale_rule: of the draft.
        advance: called with the bytes of each piece.

    Raises:
        OSError: the file system refuses.
    """
    import gguf

    writer = gguf.GGUFWriter(path, metadata.architecture.name)
    try:
        writer.add_name(name)
        matrices = {tensor.type for tensor in tensors if len(tensor.shape) > 1}
        if level == "draft":
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE)  # the only MXFP4 that it has
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
            writer.add_string("mxconv.scale_rule", scale_rule)
        else:
            is_bf16 = "BF16" in matrices
            writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16 if is_bf16 else gguf.LlamaFileType.MOSTLY_F16)
        metadata.add_to(writer)
        for tensor in tensors:
            writer.add_tensor_info(
                tensor.name, tensor.shape, np.dtype(np.float32), tensor.num_bytes, raw_dtype=tensor.ggml_type
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        assert writer.fout is not None
        file: BinaryIO = writer.fout[0]
        for tensor in tensors:
            _pad(file, writer.data_alignment)
            for piece in tensor.pieces():
                file.write(piece.data)
                advance(piece.nbytes)
        _pad(file, writer.data_alignment)
    finally:
        writer.close()


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))
