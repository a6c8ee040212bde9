"""`mxconv chat`: several turns in the terminal, every token in the colour of the level that guessed it."""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.chat_commands import QuitError, run_command
from mxconv.cli.decode_options import Drafting, Runtime, Sampling, grouped
from mxconv.cli.output import console

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.serving.conversation import Conversation
    from mxconv.speculation.text_model import Options

COLOURS = ("#3d9bd6", "#e0752d", "#1fa37e", "#c774ad", "#b8922a", "#7b8cf0")  # readable on dark and light


@grouped
def chat(
    package: Annotated[str, typer.Argument(help="The package: a folder, a Hub id or a URL; it needs a chat template.")],
    *,
    system: Annotated[str, typer.Option(help="A system message before all turns.")] = "",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply.")] = 512,
    drafting: Drafting,
    sampling: Sampling,
    runtime: Runtime,
) -> None:
    """Talk to a model in the terminal.

    Replies are sampled as generation_config.json recommends; where it says nothing, at temperature 0.7, top_p 0.95,
    min_p 0.05. Options win. /help names the commands; Ctrl-C ends a reply, Ctrl-D the program.
    """
    from mxconv.errors import ModelError
    from mxconv.serving.conversation import Conversation
    from mxconv.text.chat import ChatTemplate

    options: Options = {
        "max_new_tokens": max_new_tokens,
        **drafting.options,
        **sampling.asked,
        "seed": sampling.seed,
    }
    out = console(json_output=False)
    read = _reader()
    with runtime.load(package, drafting) as model:
        ChatTemplate.from_folder(model.loaded.folder)  # without one there is nothing to talk through: say so at once
        conversation = Conversation(model, options, system)
        _greet(conversation, out)
        for text in _lines(read):
            try:
                if text.startswith("/"):
                    run_command(text, conversation, out)
                elif text:
                    _reply(conversation, text, out)
            except ModelError as error:  # of this turn; the next one may do
                out.print(f"mxconv: {error}", style="red", markup=False, highlight=False)
            except QuitError:
                break


def _reader() -> Callable[[], str]:
    """Asks for a line: with an editor and a history where somebody types it."""
    from mxconv.errors import ModelError

    if not sys.stdin.isatty():
        return input
    try:
        from prompt_toolkit import PromptSession
    except ModuleNotFoundError:
        raise ModelError(
            "mxconv chat: prompt_toolkit is not installed; it belongs to the extra `chat`. "
            "Run: pip install 'mxconv[chat]'"
        ) from None
    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt("> ")


def _lines(read: Callable[[], str]) -> Iterator[str]:
    """What is typed, until Ctrl-D; Ctrl-C empties the line."""
    while True:
        try:
            yield read().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _greet(conversation: "Conversation", out: "Console") -> None:
    from rich.text import Text

    names = [total.name for total in conversation.totals.levels]
    legend = Text(names[0])
    for index, name in enumerate(names[1:]):
        legend.append(" <- ").append(name, style=colour(index))
    out.print(legend)
    out.print(f"sampling: {conversation.sampling.told}", style="dim", markup=False, highlight=False)


def _reply(conversation: "Conversation", text: str, out: "Console") -> None:
    colours = {total.name: colour(index) for index, total in enumerate(conversation.totals.levels[1:])}
    try:
        for piece in conversation.say(text):
            style = colours.get(piece.guessed_by or "")
            out.print(piece.text, style=style, end="", markup=False, highlight=False, soft_wrap=True)
        out.print()
    except KeyboardInterrupt:
        out.print(" [dim](ended)[/dim]", highlight=False)


def colour(index: int) -> str:
    """Of the draft with this number."""
    return COLOURS[index % len(COLOURS)]
