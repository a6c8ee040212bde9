"""Names that a shell offers as values of options; `mxconv --install-completion` teaches it to query them."""

from collections.abc import Callable, Iterable
from typing import Any

import typer

Offer = Callable[[str], list[str]]


def one_of(*names: str) -> Offer:
    """Names that are known beforehand."""
    return lambda incomplete: _beginning(names, incomplete)  # typer requires this name of the argument


def choice(purpose: str, *names: str) -> Any:
    """An option that takes one of some names, in capitals too; the library checks it."""
    return typer.Option(
        help=f"{purpose}.",
        metavar="|".join(names),
        autocompletion=one_of(*names),
        callback=lambda value: value and value.lower(),
    )


def kernels(incomplete: str) -> list[str]:
    """Values of `--kernel` on this processor."""
    from mxconv.kernels.engine import kernel_names

    return _beginning(kernel_names(), incomplete)


def native_kernels(incomplete: str) -> list[str]:
    """Values of `bench kernels --kernel` on this processor."""
    from mxconv.kernels.engine import native_names

    return _beginning((*native_names(), "all"), incomplete)


def drafts(incomplete: str) -> list[str]:
    """Kinds of drafts, up to the colon where a path or another subject follows."""
    from mxconv.drafts.kinds import all_kinds
    from mxconv.drafts.plug_in import plug_in_names

    own = (kind.name + ":" * bool(kind.subject) for kind in all_kinds())
    return _beginning((*own, *plug_in_names()), incomplete)


def hardware(incomplete: str) -> list[str]:
    """Descriptions that `cost --hardware` finds by name."""
    from mxconv.cost.hardware import hardware_names

    return _beginning((*hardware_names(), "list"), incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
