"""Opening what is to be looked at: a checkpoint or a package, told apart by the manifest."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from mxconv.arch.gguf.open_source import open_source
from mxconv.errors import MxconvError
from mxconv.package.package import Package
from mxconv.package.package_folder import find_package_or_none
from mxconv.report.checkpoint_weights import Dtype, checkpoint_weights
from mxconv.report.package_weights import package_weights
from mxconv.report.weights import Weights


@contextmanager
def open_weights(source: str, *, revision: str | None = None, dtype: Dtype | None = None) -> Iterator[Weights]:
    """Open a checkpoint or a package.

    Args:
        source: the folder, Hub id or URL of a checkpoint or a package, or a .safetensors file.
        revision: of a Hub id.
        dtype: what F32 weights are rounded to; None leaves them uncounted.

    Raises:
        MxconvError: it cannot be opened, or an option does not apply to it.
    """
    place = str(Path(source).absolute()) if os.path.lexists(source) else source
    reopen = partial(open_weights, place, revision=revision, dtype=dtype)
    with ExitStack() as stack:
        path = find_package_or_none(source, revision)
        if path is not None:
            if dtype is not None:
                raise MxconvError(
                    f"{source}: --dtype {dtype} with a package; only a checkpoint takes it. Leave it out."
                )
            package = stack.enter_context(Package(path))
            yield replace(package_weights(source, package, stack), reopen=reopen)
        else:
            checkpoint = stack.enter_context(open_source(source, revision=revision))
            yield replace(checkpoint_weights(checkpoint, dtype), reopen=reopen)
