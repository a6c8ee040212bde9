"""How many bytes of weights each level of a loaded package reads for one forward pass."""

from mxconv.drafts.draft_price import PartBytes
from mxconv.drafts.loaded_level import LoadedLevel
from mxconv.drafts.loader import LoadedPackage
from mxconv.drafts.model import recorded_level
from mxconv.engine.decoder import Decoder
from mxconv.engine.skipped import Skipped
from mxconv.engine.stored_bytes import checkpoint_bytes, head_bytes, mtp_bytes, package_bytes
from mxconv.package.package import Package

PARTS = ("layer-skip", "streaming", "fewer-experts", "swift", "early-exit")


def bytes_per_forward(loaded: LoadedPackage, level: LoadedLevel) -> int:
    """Bytes of weights that one forward pass of a level reads, whatever the number of tokens; none for a look-up.

    A speculator's pass is one of its stages: all read the same. A mixture of experts is counted for one token; a pass
    over more tokens reads more.
    """
    if level.reader is not None:
        return _whole_bytes(loaded, level) // level.reader.num_passes
    if level.decoder is None:
        return 0
    if level.record.kind in PARTS:  # a part of the run's target, or of an earlier draft that is a whole model
        target = loaded.levels[0]
        if target.record.kind == "model":
            return round(_whole_bytes(loaded, target) * _share(level.decoder))
        return round(_part_bytes(loaded.package, target.record.kind == "self-draft", level.decoder))
    if level.record.codec == "package":
        assert level.folder is not None
        with Package(level.folder) as package:
            inner = recorded_level(level.folder, package.manifest, level.record)
            if inner.kind in PARTS:
                return round(_part_bytes(package, is_draft=False, part=level.decoder))
    return round(_whole_bytes(loaded, level) * _share(level.decoder))


def _whole_bytes(loaded: LoadedPackage, level: LoadedLevel) -> int:
    """Bytes of the model that a level is, or is a part of."""
    if level.reader is None and level.record.kind != "model":
        return package_bytes(loaded.package, level.record.kind == "self-draft")
    if level.record.kind == "mtp":
        return mtp_bytes(loaded.package, in_four_bits=level.record.codec is not None)
    assert level.folder is not None
    if level.record.codec == "package":
        with Package(level.folder) as package:
            if level.reader is not None:
                return package_bytes(package, is_draft=True)
            inner = recorded_level(level.folder, package.manifest, level.record)
            return package_bytes(package, inner.kind == "self-draft")
    return checkpoint_bytes(level.folder)


def _part_bytes(package: Package, is_draft: bool, part: Decoder) -> float:
    """Bytes of a part of a package's model: the head, which may have its own bits, and the layers that are kept."""
    whole, head = package_bytes(package, is_draft), head_bytes(package, is_draft)
    read, stored = PartBytes.of(part), PartBytes.of(part, every_expert=True)
    return head + (whole - head) * (read.total(_skipped(part)) - read.head) / (stored.total() - stored.head)


def _share(decoder: Decoder) -> float:
    """Of its weights, those that a pass over one token reads: what is stored may take fewer bits than 16, alike."""
    stored = PartBytes.of(decoder, every_expert=True).total()
    return PartBytes.of(decoder).total(_skipped(decoder)) / stored


def _skipped(decoder: Decoder) -> Skipped:
    """The parts that a decoder leaves out."""
    return Skipped(
        frozenset(layer.index for layer in decoder.layers if layer.skips_attention),
        frozenset(layer.index for layer in decoder.layers if layer.skips_mlp),
    )
