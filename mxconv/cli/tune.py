"""`mxconv tune`: the fastest way to decode a package, found by measurement and written into its manifest."""

from typing import Any

import typer
from typer.core import TyperGroup

from mxconv.cli.tune_layer_skip import layer_skip
from mxconv.cli.tune_levels import levels

DEFAULT = "levels"


class Tune(TyperGroup):
    """A first word that is no command is a package, and `levels` is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


tune = typer.Typer(
    cls=Tune,
    help=(
        "Find by measurement how a package decodes fastest. `mxconv tune PACKAGE` is short for `mxconv tune levels "
        "PACKAGE`."
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)
tune.command(DEFAULT)(levels)
tune.command("layer-skip")(layer_skip)
