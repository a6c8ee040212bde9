"""How many bytes of weights each level of a loaded package reads for one forward pass."""

from mxconv.checkpoint.package import Package
from mxconv.cost.traffic import checkpoint_bytes, package_bytes
from mxconv.model.loader import LoadedLevel, LoadedPackage
from mxconv.model.skipped import Skipped
from mxconv.speculative.part_bytes import PartBytes


def bytes_per_forward(loaded: LoadedPackage, level: LoadedLevel) -> int:
    """Bytes of weights that one forward pass of a level reads, whatever the number of tokens; none for a look-up."""
    if level.decoder is None:
        return 0
    if level.record.kind in ("layer-skip", "swift", "early-exit"):  # of the last two, as they begin
        skipped = Skipped.at_first(level.record, level.decoder.config.num_hidden_layers)
        parts = PartBytes.of(level.decoder)  # relative to each other: what is stored may take fewer bits
        return round(package_bytes(loaded.package, is_draft=False) * parts.total(skipped) / parts.total())
    if level.record.kind != "model":
        return package_bytes(loaded.package, level.record.kind == "self-draft")
    assert level.folder is not None
    if level.record.codec == "package":
        with Package(level.folder) as package:
            return package_bytes(package, is_draft=False)
    return checkpoint_bytes(level.folder)
