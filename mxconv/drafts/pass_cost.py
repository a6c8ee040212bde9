"""What a pass of a level costs: the bytes of weights that it reads, and the sizes of what it computes.

Of weights, counted are the matrices that are multiplied, the output head among them, of experts those of all of them.
The embedding's rows, norms, biases and the KV cache are not: together they are a thousandth of a model.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from mxconv.arch.config import ModelConfig
from mxconv.arch.families.registry import describe_file
from mxconv.arch.model_sizes import ModelSizes
from mxconv.checkpoint.stacked import stacked_experts
from mxconv.codecs.vnni8 import TILE_ROWS
from mxconv.engine.decoder import Decoder
from mxconv.engine.stored_weights import EMBEDDING, HEAD, has_exact_head, head_tensor, package_config
from mxconv.errors import MxconvError
from mxconv.package.head_screen import STEM, own_candidates, screen_bytes
from mxconv.package.level_record import LevelRecord, ScreenRecord
from mxconv.package.manifest import TensorRecord
from mxconv.package.package import Package
from mxconv.package.stored import mxfp4_arrays, tensor_arrays
from mxconv.speculation.loaded_level import num_layer_weights

READER_EMBEDDINGS = "speculator.emb."
HEAD_EMBEDDING = "embed_tokens.weight"  # of a draft head
BYTES_PER_WEIGHT = 2  # of what is kept


def package_bytes(package: Package, is_draft: bool) -> int:
    """Bytes of a package's target, or of its 4-bit level."""
    matrices = _matrices(package)
    names = {record.name for record in matrices}
    scales = {r.scaled.by for r in matrices if r.scaled is not None}  # of what is decoded when it is loaded
    config = _config(package.root)
    multiplied = [r for r in matrices if r.name not in scales and _is_multiplied(r.name, names, config)]
    exact = _heads(names, config) if has_exact_head(package) else ()
    return sum(_record_bytes(record, is_draft and record.name not in exact) for record in multiplied)


def head_bytes(package: Package, is_draft: bool) -> int:
    """Bytes of the output head of a package's target, or of its 4-bit level; 0 where none is among its tensors."""
    names = {record.name for record in package.manifest.tensors}
    heads = _heads(names, _config(package.root))
    as_draft = is_draft and not has_exact_head(package)
    return sum(_record_bytes(record, as_draft) for record in package.manifest.tensors if record.name in heads)


def screened_bytes(package: Package, screen: ScreenRecord | None) -> int | None:
    """Bytes that a pass over one token reads of an output head with a screen: the screen, and what candidates need.

    Candidates are counted as one of every tile that has some; they are hardly more. Of BSFP whole tiles are read.

    Args:
        package: whose head it is.
        screen: the level's; None: the head in 4 bits, where it screens itself.

    Returns:
        None where the whole head is read.
    """
    config, is_bsfp = package_config(package), package.manifest.options.codec == "bsfp"
    vocab_size, hidden_size = config.vocab_size, config.hidden_size
    if screen is not None:
        read, tiles = screen_bytes(screen.rank, vocab_size, hidden_size), screen.num_candidates
    else:
        names = {record.name for record in package.manifest.tensors}
        tiles = 0 if has_exact_head(package) else own_candidates(package.manifest.tensors, _heads(names, config))
        arrays = mxfp4_arrays(STEM, (vocab_size, hidden_size))
        read = head_bytes(package, is_draft=True) if is_bsfp else sum(array.num_bytes for array in arrays)
    row = head_bytes(package, is_draft=False) / vocab_size
    return read + round(tiles * (TILE_ROWS if is_bsfp else 1) * row) if tiles else None


def mtp_bytes(package: Package, in_four_bits: bool) -> int:
    """Bytes of the MTP module of a package's model, with the output head, which is the model's."""
    config = package_config(package)
    assert config.mtp is not None, "of a level that was loaded"
    matrices = {config.own_name(record.name): record for record in _matrices(package)}
    head = matrices.get(head_tensor(config)) or matrices[config.embedding]
    own = [record for name, record in matrices.items() if name is not None and config.mtp.reads(name)]
    head_in_four_bits = in_four_bits and not has_exact_head(package)
    return sum(_record_bytes(record, in_four_bits) for record in own) + _record_bytes(head, head_in_four_bits)


def checkpoint_bytes(folder: Path) -> int:
    """Bytes of a 16-bit model as it is."""
    from mxconv.checkpoint.source import open_checkpoint

    with open_checkpoint(folder) as checkpoint:
        stacks = stacked_experts(checkpoint.tensors)
        matrices = {name: t for name, t in checkpoint.tensors.items() if len(t.shape) == 2 or name in stacks}
        names, config = set(matrices), _config(folder)
        return sum(tensor.num_bytes for name, tensor in matrices.items() if _is_multiplied(name, names, config))


def _matrices(package: Package) -> list[TensorRecord]:
    return [record for record in package.manifest.tensors if len(record.shape) == 2 or record.stack is not None]


def _config(folder: Path) -> ModelConfig | None:
    """The description of a decoder; None for a draft that is none, or for a family that mxconv does not run."""
    try:
        return describe_file(folder / "config.json")
    except MxconvError:
        return None


def _heads(names: Iterable[str], config: ModelConfig | None) -> set[str]:
    """The tensor that is the output head: its own, or else the embedding."""
    own = {name: name if config is None else config.own_name(name) for name in names}
    head, embedding = (HEAD, EMBEDDING) if config is None else (head_tensor(config), config.embedding)
    return {name for name in own if own[name] == head} or {name for name in own if own[name] == embedding}


def _is_multiplied(name: str, names: set[str], config: ModelConfig | None) -> bool:
    """Not an embedding, unless it is the output head too, nor what is of another tower or of an MTP module."""
    if name.startswith(READER_EMBEDDINGS) or name == HEAD_EMBEDDING:
        return False
    if config is None:
        return name != EMBEDDING or HEAD not in names
    own = config.own_name(name)
    if own is not None and config.mtp is not None and config.mtp.has(own):
        return False
    if own == config.embedding:
        return head_tensor(config) not in {config.own_name(each) for each in names}
    return own is not None and own not in config.looked_up


def _record_bytes(record: TensorRecord, is_draft: bool) -> int:
    if record.codec in ("mxfp4", "mxint8") and (is_draft or record.carried is not None):
        return sum(array.num_bytes for array in tensor_arrays(record))
    if record.codec != "bsfp" or (record.is_rescaled and not is_draft):  # the latter is rebuilt when it is loaded
        return prod(record.shape) * BYTES_PER_WEIGHT
    arrays = tensor_arrays(record)
    if is_draft:
        return sum(array.num_bytes for array in arrays if array.name.endswith((".codes", ".scales")))
    return sum(array.num_bytes for array in arrays if not array.name.endswith(".scales"))


CODECS = {"bf16": "bf16", "f16": "fp16", "bsfp": "bsfp", "mxfp4": "mxfp4"}  # of manifest and models


@dataclass(frozen=True)
class PassCost:
    """What a pass of a level reads and computes.

    Args:
        codec: of the weights, as `mxconv cost` names it.
        num_bytes: of the stored weights of the model that the level is or is a part of, all experts counted.
        sizes: of the level; None where a pass is no model's.
        typical: the row of published acceptances that fits; None where nobody measured such a draft.
        head_bytes: of `num_bytes`, the output head's; None where its weights have as many bits as all others.
        whole: the sizes of the model that the level is a part of; None where it is all of it.
        num_passes: that together read all weights once.
    """

    codec: str
    num_bytes: int = 0
    sizes: ModelSizes | None = None
    typical: str | None = None
    head_bytes: int | None = None
    whole: ModelSizes | None = None
    num_passes: int = 1

    @classmethod
    def of_package(cls, package: Package, record: LevelRecord) -> "PassCost":
        """The cost of a package's target, or of its 4-bit copy."""
        is_draft = record.kind == "self-draft"
        codec = CODECS[record.codec or "bf16"]
        codec = "bsfp-draft" if is_draft and codec == "bsfp" else codec
        sizes = ModelSizes.of(package_config(package))
        return cls(codec, package_bytes(package, is_draft), sizes, codec, head_bytes(package, is_draft))

    @classmethod
    def of_folder(cls, folder: Path, record: LevelRecord, sizes: ModelSizes | None, typical: str | None) -> "PassCost":
        """The cost of a draft in a folder: a checkpoint, or with the codec "package" a package's 4-bit weights."""
        if record.codec != "package":
            return cls(CODECS[record.codec or "bf16"], checkpoint_bytes(folder), sizes, typical)
        with Package(folder) as package:
            codec = "bsfp-draft" if package.manifest.levels[0].codec == "bsfp" else "mxfp4"
            return cls(codec, package_bytes(package, is_draft=True), sizes, typical)

    def screened(self, package: Package, record: LevelRecord) -> "PassCost":
        """The same pass of a package's own weights with a screen before its output head, if there is one."""
        head = screened_bytes(package, record.screen) if self.sizes is not None else None
        if head is None:
            return self
        return replace(self, num_bytes=self.num_bytes - (self.head_bytes or 0) + head, head_bytes=head)

    def bytes_read(self, decoder: Decoder | None) -> int:
        """Bytes of weights that a pass over one token reads, of experts those that it chooses; None is no decoder."""
        if decoder is None:
            return self.num_bytes // self.num_passes
        rows, columns = decoder.head.shape
        head = 2 * rows * columns if self.head_bytes is None else self.head_bytes
        kept = num_layer_weights(decoder) / (num_layer_weights(decoder, every_expert=True) or 1)
        return round(head + (self.num_bytes - head) * kept)
