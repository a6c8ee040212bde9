"""`mxconv bench`: kernels, decoding and conversion, measured against what the machine can do."""

import typer

from mxconv.cli.bench_convert import convert
from mxconv.cli.bench_decode import decode
from mxconv.cli.bench_kernels import kernels
from mxconv.cli.bench_machine import machine

bench = typer.Typer(
    help="Measure kernels, decoding and conversion beside the machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
for command in (kernels, decode, convert, machine):
    bench.command()(command)
