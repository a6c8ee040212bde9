"""`mxconv chat`: several turns in the terminal, every token in the colour of the level that guessed it."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mxconv.cli.common_options import grouped
from mxconv.cli.decode_options import ConstraintOptions, Drafting, Runtime, SamplingOptions, TemplateVar, variables_of
from mxconv.cli.output import Output
from mxconv.errors import ModelError, MxconvError, install_line

if TYPE_CHECKING:
    from mxconv.decode import Options
    from mxconv.serving.conversation import Conversation

COLOURS = ("#3d9bd6", "#e0752d", "#1fa37e", "#c774ad", "#b8922a", "#7b8cf0")  # readable on dark and light
HELP = """\
/system TEXT  say this before all turns, from the next one on; without a text nothing
/stats        who guessed the tokens, how fast they came, and how they are sampled
/save FILE    write the messages as JSON
/quit         leave; so does Ctrl-D. Ctrl-C ends a reply"""
TABLE = {
    "level": ("name",),
    "tokens": ("num_guessed",),
    "proposed": (lambda level: level.num_proposed or None,),
    "accepted": (lambda level: level.num_accepted / level.num_proposed if level.num_proposed else None, ".0%"),
}


class QuitError(Exception):
    """Leave the conversation."""


@grouped
def chat(
    package: Annotated[str, typer.Argument(help="The package: a folder, a Hub id or a URL; it needs a chat template.")],
    *,
    system: Annotated[str, typer.Option(help="A system message before all turns.")] = "",
    template_var: TemplateVar = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a reply.")] = 512,
    drafting: Drafting,
    sampling: SamplingOptions,
    constraint: ConstraintOptions,
    runtime: Runtime,
) -> None:
    """Talk to a model in the terminal.

    Replies are sampled as generation_config.json recommends; where it is silent, at temperature 0.7, top_p 0.95,
    min_p 0.05. Options win. /help names the commands; Ctrl-C ends a reply, Ctrl-D the program.
    """
    from mxconv.serving.conversation import Conversation
    from mxconv.text.chat import ChatTemplate

    options: Options = {
        "max_new_tokens": max_new_tokens,
        **drafting.options,
        **sampling.given,
        "seed": sampling.seed,
        "constraint": constraint.given,
    }
    out, read = Output(json_output=False), _reader()
    with runtime.load(package, drafting) as model:
        ChatTemplate.from_folder(model.loaded.folder)  # raises an error before the first turn where there is none
        model.template_variables = variables_of(template_var)
        conversation = Conversation(model, options, system)
        _greet(conversation, out)
        for text in _lines(read):
            try:
                if text.startswith("/"):
                    run_command(text, conversation, out)
                elif text:
                    _reply(conversation, text, out)
            except MxconvError as error:  # of this turn; the next one may do
                out.line(f"mxconv: {error}", "red")
            except QuitError:
                break


def _reader() -> Callable[[], str]:
    """A function that reads a line: with an editor and a history where somebody types it."""
    if not sys.stdin.isatty():
        return input
    try:
        from prompt_toolkit import PromptSession
    except ModuleNotFoundError:
        raise ModelError(
            "mxconv chat: prompt_toolkit is not installed; it belongs to the extra `chat`. " + install_line("chat")
        ) from None
    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt("> ")


def _lines(read: Callable[[], str]) -> Iterator[str]:
    """Lines until Ctrl-D; Ctrl-C empties the line."""
    while True:
        try:
            yield read().strip()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return


def _colours(conversation: "Conversation") -> dict[str, str]:
    """The colour of each draft."""
    drafts = conversation.totals.levels[1:]
    return {draft.name: COLOURS[index % len(COLOURS)] for index, draft in enumerate(drafts)}


def _greet(conversation: "Conversation", out: Output) -> None:
    out.line(conversation.totals.levels[0].name, end="")
    for name, colour in _colours(conversation).items():
        out.line(" <- ", end="")
        out.line(name, colour, end="")
    out.line("")
    out.line(f"sampling: {conversation.sampling.summary}", "dim")


def _reply(conversation: "Conversation", text: str, out: Output) -> None:
    colours = _colours(conversation)
    try:
        was_thought = False
        for piece in conversation.say(text):
            if piece.text:
                if was_thought and not piece.is_thought:
                    out.line("\n")
                was_thought = piece.is_thought
                out.line(piece.text, "dim" if was_thought else colours.get(piece.guessed_by or ""), end="")
        out.line("")
    except KeyboardInterrupt:
        out.line(" (ended)", "dim")


def run_command(line: str, conversation: "Conversation", out: Output) -> None:
    """Run a line that begins with a slash.

    Raises:
        QuitError: it ends the conversation.
        MxconvError: there is no such command, or it cannot be done.
    """
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    match name:
        case "/quit" | "/exit":
            raise QuitError
        case "/help":
            out.line(HELP)
        case "/system":
            conversation.system = rest
            out.line("Noted." if rest else "No system message.", "dim")
        case "/stats":
            _print_statistics(conversation, out)
        case "/save":
            _save(rest, conversation, out)
            out.line(f"{len(conversation.messages)} messages in {rest}", "dim")
        case _:
            raise ModelError(f"{name}: no command; /system, /stats, /save, /quit and /help are there.")


def _save(name: str, conversation: "Conversation", out: Output) -> None:
    from mxconv.system.disk import check_output

    if not name:
        raise ModelError("/save: 0 files named; one is required. Write /save FILE.")
    path = Path(name).expanduser()
    check_output(path, None)
    out.write_text(path, json.dumps({"messages": conversation.messages}, ensure_ascii=False, indent=1) + "\n")


def _print_statistics(conversation: "Conversation", out: Output) -> None:
    totals = conversation.totals
    out.table(TABLE, totals.levels)
    speed = totals.num_tokens / totals.seconds if totals.seconds else 0.0
    out.line(
        f"{totals.num_tokens} tokens in {totals.num_rounds} rounds "
        f"({totals.num_tokens / max(totals.num_rounds, 1):.2f} a round), {speed:.1f} a second"
    )
    out.line(f"sampling: {conversation.sampling.summary}")
