"""A target in mxconv's own engine, from a 16-bit folder or a package."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mxconv.arch.families.table import describe_file
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.kernels.engine import choose_engine
from mxconv.package.manifest import FILE_NAME


@contextmanager
def target_decoder(folder: Path) -> Iterator[Decoder]:
    """The decoder of the 16-bit weights, while the files are open.

    Raises:
        MxconvError: the folder holds no model that mxconv decodes.
    """
    if (folder / FILE_NAME).is_file():
        with LoadedPackage(folder, ["target"]) as package:
            decoder = package.levels[0].decoder
            assert decoder is not None
            yield decoder
        return
    with open_checkpoint(folder) as checkpoint:
        config = describe_file(folder / "config.json")
        matrices = Matrices(choose_engine())
        yield matrices.decoder(config, dense_weights(checkpoint.tensors, config, matrices), str(folder))
