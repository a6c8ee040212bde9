"""What a checkpoint's own module for multi-token prediction (MTP) is made of, as data."""

from dataclasses import dataclass

from mxconv.arch.description import LayerParts, Linear, Norm


@dataclass(frozen=True)
class Mtp:
    """A layer beside the model's own that was trained with them to predict one token further.

    A token's embedding and the model's state of the token before it, behind the final norm, are normed each and put
    side by side; a projection and a layer of the family's own kind over all such pairs of a text, and a last norm, make
    the state behind the token. Embedding and output head are the model's.

    Every name here is of the whole tensor or module.

    Args:
        modules: how the names of a module's tensors begin, and no others: of each module that the checkpoint has. The
            first one runs, chained with itself.
        layer: its parts.
        layer_prefix: of their tensors.
        embedding_norm: of the embedding.
        state_norm: of the state.
        projection: (hidden_size, 2 * hidden_size).
        final_norm: behind the layer.
        state_first: whether the projection takes in the state before the embedding.
        copies: tensors of a module, as their names end, that repeat the model's embedding or head and are not read.

    Source:
        DeepSeek-V3 technical report (arXiv 2412.19437), section 2.2, and README_WEIGHTS.md of its release: embedding
        and head are shared. That the state is read behind the final norm, and the module's own behind its last norm
        when it is chained: MtpModel of transformers 5.23, deepseek_nextn.py of SGLang, vLLM since its pull request
        45895, llama.cpp for Qwen since its pull request 24025.
    """

    modules: tuple[str, ...]
    layer: LayerParts
    layer_prefix: str
    embedding_norm: Norm
    state_norm: Norm
    projection: Linear
    final_norm: Norm
    state_first: bool = False
    copies: tuple[str, ...] = ()

    def has(self, tensor: str) -> bool:
        """Whether a tensor is of one of the modules."""
        return tensor.startswith(self.modules)

    def reads(self, tensor: str) -> bool:
        """Whether the module that runs uses a tensor."""
        return tensor.startswith(self.modules[0]) and not tensor.endswith(self.copies)
