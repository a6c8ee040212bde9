"""`mxconv train`: drafts that are made from text. A command is a file."""

import typer

from mxconv.cli.train_draft import draft
from mxconv.cli.train_eagle3 import eagle3
from mxconv.cli.train_generate import generate
from mxconv.cli.train_ngram import ngram
from mxconv.cli.train_speculator import speculator
from mxconv.cli.train_spire import spire

train = typer.Typer(help="Make drafts from text.", no_args_is_help=True, rich_markup_mode=None)
train.command()(ngram)
train.command()(generate)
train.command()(speculator)
train.command()(spire)
train.command()(eagle3)
train.command()(draft)
