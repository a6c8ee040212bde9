"""A small agent through each of the server's dialects: the model calls a tool, reads its result, and answers.

    mxconv serve package
    python examples/agent.py http://127.0.0.1:8000 "How many lines has README.md?"    # pip install openai anthropic

The first answer has to be a call, so that the tools' schemas constrain it: any model, however small, writes one that
can be run. A model that knows tools can choose by itself: set `tool_choice` to "auto" and go on while there are calls.
"""

import json
import sys
from pathlib import Path
from typing import Any

import anthropic
import openai

NUMBER, TEXT = {"type": "number"}, {"type": "string", "maxLength": 40}
TOOLS = {
    "multiply": ("Multiplies two numbers.", {"a": NUMBER, "b": NUMBER}, lambda a, b: a * b),
    "list_files": ("Names the files here.", {}, lambda: sorted(path.name for path in Path().iterdir())),
    "count_lines": (
        "Counts the lines of a file.",
        {"file": TEXT},
        lambda file: len(Path(Path(file).name).read_text().splitlines()),
    ),
}
SCHEMAS: dict[str, dict[str, Any]] = {
    name: {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    for name, (_, properties, _) in TOOLS.items()
}


def call(name: str, arguments: dict[str, Any]) -> str:
    """Run a tool; what went wrong is for the model to read."""
    try:
        result = json.dumps(TOOLS[name][2](**arguments))
    except (OSError, ValueError) as error:
        result = f"error: {error}"
    print(f"  {name}({arguments}) -> {result}")
    return result


def through_chat(url: str, question: str) -> str | None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    messages: list[Any] = [{"role": "user", "content": question}]
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "description": TOOLS[name][0], "parameters": schema}}
        for name, schema in SCHEMAS.items()
    ]
    asked: dict[str, Any] = {"model": client.models.list().data[0].id, "tools": tools, "max_tokens": 200}
    reply = client.chat.completions.create(messages=messages, tool_choice="required", **asked).choices[0].message
    messages.append(reply.model_dump(exclude_none=True))
    for made in reply.tool_calls or []:
        result = call(made.function.name, json.loads(made.function.arguments))
        messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
    return client.chat.completions.create(messages=messages, **asked).choices[0].message.content


def through_responses(url: str, question: str) -> str | None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    items: list[Any] = [{"role": "user", "content": question}]
    tools: list[Any] = [
        {"type": "function", "name": name, "description": TOOLS[name][0], "parameters": schema, "strict": True}
        for name, schema in SCHEMAS.items()
    ]
    asked: dict[str, Any] = {"model": client.models.list().data[0].id, "tools": tools, "max_output_tokens": 200}
    reply = client.responses.create(input=items, tool_choice="required", **asked)
    for made in reply.output:
        if made.type == "function_call":
            result = call(made.name, json.loads(made.arguments))
            items += [made.model_dump(exclude_none=True)]
            items += [{"type": "function_call_output", "call_id": made.call_id, "output": result}]
    return client.responses.create(input=items, **asked).output_text


def through_messages(url: str, question: str) -> str:
    client = anthropic.Anthropic(base_url=url, api_key="none")
    messages: list[Any] = [{"role": "user", "content": question}]
    tools: list[Any] = [
        {"name": name, "description": TOOLS[name][0], "input_schema": schema} for name, schema in SCHEMAS.items()
    ]
    asked: dict[str, Any] = {"model": client.models.list().data[0].id, "tools": tools, "max_tokens": 200}
    reply = client.messages.create(messages=messages, tool_choice={"type": "any"}, **asked)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": call(block.name, block.input)}
        for block in reply.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
    return "".join(
        block.text for block in client.messages.create(messages=messages, **asked).content if block.type == "text"
    )


def main(url: str, question: str) -> None:
    for through in (through_chat, through_responses, through_messages):
        print(f"{through.__name__}:")
        print(f"  {through(url, question)!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
