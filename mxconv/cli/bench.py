"""`mxconv bench`: kernels, decoding, serving and conversion, measured against what the machine can do."""

import typer

from mxconv.cli.bench_convert import convert
from mxconv.cli.bench_decode import decode
from mxconv.cli.bench_kernels import kernels
from mxconv.cli.bench_machine import machine
from mxconv.cli.bench_serve import serve

bench = typer.Typer(
    help="Measure kernels, decoding, serving and conversion.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (kernels, decode, serve, convert, machine):
    bench.command()(command)
