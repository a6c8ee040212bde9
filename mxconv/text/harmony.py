"""Answers in the harmony format (gpt-oss): messages, each on a channel, and perhaps to a function.

    <|channel|>analysis<|message|>…<|end|>                       what the model thinks
    <|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>      the answer

Source: OpenAI, "harmony response format".
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxconv.text.tokenizer import Tokenizer
from mxconv.text.tool_calls import (
    MOST_CALLS,
    AnswerReader,
    ToolCall,
    ToolForm,
    json_in_grammar,
    marker_in_grammar,
    parameters_of,
    parsed,
)

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
MARKER = re.compile("|".join(map(re.escape, (START, CHANNEL, MESSAGE, *ENDS))))
LONGEST_MARKER = len(CONSTRAIN)
RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")
ON_CHANNEL = re.compile(r"<\|channel\|>(\w+)")


@dataclass(frozen=True)
class HarmonyForm(ToolForm):
    """Calls as messages to functions."""

    @property
    def markers(self) -> tuple[str, ...]:
        return START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS

    @property
    def always_reads(self) -> bool:
        return True

    def grammar(self, tools: Sequence[Mapping[str, Any]], may_be_several: bool, tokenizer: Tokenizer) -> str:
        """Return a grammar as `ToolForm` does; an answer ends with its first call."""
        channel, constrain, message = (marker_in_grammar(each, tokenizer) for each in (CHANNEL, CONSTRAIN, MESSAGE))
        lines = ["start: " + " | ".join(f"call{number}" for number in range(len(tools)))]
        for number, tool in enumerate(tools):
            head = json.dumps(f"commentary to=functions.{tool['name']} ")
            lines.append(f'call{number}: {channel} {head} {constrain} "json" {message} json{number}')
            lines.append(f"json{number}: {json_in_grammar(parameters_of(tool))}")
        return "\n".join([*lines, ""])

    def reader(self, tools: Sequence[Mapping[str, Any]]) -> AnswerReader:
        return HarmonyReader([tool["name"] for tool in tools])


class HarmonyReader(AnswerReader):
    """Reads messages: those to nobody are text, or on the channel `analysis` what the model thought.

    An answer that begins without a marker is text: so answers to constraints are.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self._names = frozenset(names)
        self._header: str | None = None  # of the message that begins; None inside a message
        self._channel, self._recipient = "final", ""
        self._body = ""

    def feed(self, text: str) -> str:
        self._held += text
        said = ""
        while (found := MARKER.search(self._held)) is not None:
            said += self._take(self._release(found.end())[: found.start()])
            if found[0] == MESSAGE:
                self._open(self._header or "")
            elif found[0] in ENDS:
                said += self._close()
            else:
                self._header = (self._header or "") + found[0]
        certain = len(self._held)
        if (begin := self._held.rfind("<", max(certain - LONGEST_MARKER, 0))) >= 0:
            certain = begin
        return said + self._take(self._release(certain))

    def finish(self) -> str:
        return self._take(self._release(len(self._held))) + self._close()

    def _open(self, header: str) -> None:
        channel, recipient = ON_CHANNEL.search(header), RECIPIENT.search(header)
        self._channel = channel[1] if channel else "final"
        self._recipient = recipient[1] if recipient else ""
        self._header, self._body = None, ""

    def _take(self, piece: str) -> str:
        """A piece of a header or of a message; returns it where it is text for the client."""
        if self._header is not None:
            self._header += piece
        elif self._recipient:
            self._body += piece
        elif self._channel == "analysis":
            self.reasoning += piece
        else:
            return piece
        return ""

    def _close(self) -> str:
        """The end of a message; returns one to a function that is no call of a known one."""
        name, body, self._recipient, self._body = self._recipient, self._body, "", ""
        self._header = None
        self._channel = "final"
        if not name:
            return ""
        arguments = parsed(body)
        if name not in self._names or not isinstance(arguments, dict) or len(self.calls) == MOST_CALLS:
            return body
        self.calls.append(ToolCall.of(name, arguments))
        return ""


HARMONY = HarmonyForm("", "")
