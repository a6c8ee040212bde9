"""What a line of `mxconv chat` that begins with a slash does."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from mxconv.errors import ModelError

if TYPE_CHECKING:
    from rich.console import Console

    from mxconv.serving.conversation import Conversation

HELP = """\
/system TEXT  say this before all turns, from the next one on; without a text nothing
/stats        who guessed the tokens, how fast they came, and how they are sampled
/save FILE    write the messages as JSON
/quit         leave; so does Ctrl-D. Ctrl-C ends a reply"""


class QuitError(Exception):
    """Leave the conversation."""


def run_command(line: str, conversation: "Conversation", out: "Console") -> None:
    """Do what a line says.

    Raises:
        QuitError: it says so.
        ModelError: there is no such command, or it cannot be done.
    """
    name, _, rest = line.partition(" ")
    rest = rest.strip()
    match name:
        case "/quit" | "/exit":
            raise QuitError
        case "/help":
            out.print(HELP, markup=False, highlight=False)
        case "/system":
            conversation.system = rest
            out.print("Noted." if rest else "No system message.", style="dim")
        case "/stats":
            _print_statistics(conversation, out)
        case "/save":
            _save(rest, conversation)
            out.print(f"{len(conversation.messages)} messages in {rest}", style="dim", markup=False, highlight=False)
        case _:
            raise ModelError(f"{name}: no command; /system, /stats, /save, /quit and /help are there.")


def _save(name: str, conversation: "Conversation") -> None:
    if not name:
        raise ModelError("/save: 0 files named; one is required. Write /save FILE.")
    try:
        with Path(name).expanduser().open("x", encoding="utf-8") as file:
            json.dump({"messages": conversation.messages}, file, ensure_ascii=False, indent=1)
            file.write("\n")
    except FileExistsError as error:
        raise ModelError(f"{name}: exists; nothing is overwritten. Choose another file.") from error
    except OSError as error:
        raise ModelError(f"{name}: cannot be written ({error.strerror}). Check the path.") from error


def _print_statistics(conversation: "Conversation", out: "Console") -> None:
    from rich.table import Table

    totals = conversation.totals
    table = Table("level", "tokens", "proposed", "stood")
    for level in totals.levels:
        rate = f"{level.num_accepted / level.num_proposed:.0%}" if level.num_proposed else ""
        table.add_row(level.name, str(level.num_guessed), str(level.num_proposed or ""), rate)
    out.print(table)
    speed = totals.num_tokens / totals.seconds if totals.seconds else 0.0
    out.print(
        f"{totals.num_tokens} tokens in {totals.num_rounds} rounds "
        f"({totals.num_tokens / max(totals.num_rounds, 1):.2f} a round), {speed:.1f} a second",
        highlight=False,
    )
    out.print(f"sampling: {conversation.sampling.told}", markup=False, highlight=False)
