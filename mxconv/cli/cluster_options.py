"""Options of commands whose work a cluster can do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.common_options import size_option
from mxconv.cli.completion import one_of

if TYPE_CHECKING:
    from mxconv.workers import Executor

WORKERS = Annotated[
    str,
    typer.Option(
        help="Workers: threads; ray, a new cluster here; ray:auto or ray:HOST:PORT, a running one (extra `ray`).",
        autocompletion=one_of("threads", "ray", "ray:auto"),
    ),
]

MEMORY = Annotated[
    int | None,
    size_option("Most bytes of memory that each worker may need."),
]


@contextmanager
def executors(workers: str, num_threads: int, memory_bytes: int | None = None) -> Iterator[Callable[[], "Executor"]]:
    """A function that makes the executor that `--workers` names, until the end of the block.

    Raises:
        MxconvError: Ray is not installed, or no cluster answers.
        typer.BadParameter: the option is none that exists.
    """
    from mxconv.cluster.connection import parse_workers
    from mxconv.errors import MxconvError

    try:
        address = parse_workers(workers)
    except MxconvError as error:
        raise typer.BadParameter(str(error)) from error
    if address is None:
        from mxconv.workers import Workers

        yield lambda: Workers(num_threads)
        return
    from mxconv.cluster.connection import cluster

    with cluster(address, num_threads, memory_bytes) as make:
        yield make
