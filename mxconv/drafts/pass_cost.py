"""What a pass of a level costs: the bytes of weights that it reads, and the sizes of what it computes."""

from dataclasses import dataclass, replace
from pathlib import Path

from mxconv.arch.model_sizes import ModelSizes
from mxconv.engine.decoder import Decoder
from mxconv.engine.stored_bytes import checkpoint_bytes, head_bytes, package_bytes, screened_bytes
from mxconv.engine.stored_weights import package_config
from mxconv.package.level_record import LevelRecord
from mxconv.package.package import Package
from mxconv.speculation.loaded_level import num_layer_weights

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
        """The same pass of a package's own weights with an output head that has the level's screen, if there is one."""
        if self.sizes is None or record.screen is None:
            return self
        head = screened_bytes(package, record.screen)
        return replace(self, num_bytes=self.num_bytes - (self.head_bytes or 0) + head, head_bytes=head)

    def bytes_read(self, decoder: Decoder | None) -> int:
        """Bytes of weights that a pass over one token reads, of experts those that it chooses; None is no decoder."""
        if decoder is None:
            return self.num_bytes // self.num_passes
        rows, columns = decoder.head.shape
        head = 2 * rows * columns if self.head_bytes is None else self.head_bytes
        kept = num_layer_weights(decoder) / (num_layer_weights(decoder, every_expert=True) or 1)
        return round(head + (self.num_bytes - head) * kept)
