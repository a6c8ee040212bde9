"""A small agent through each of the server's dialects: the model calls a tool, reads its result, and answers.

    mxconv serve package
    python examples/agent.py http://127.0.0.1:8000 "How many lines has README.md?"    # pip install openai anthropic

The first answer has to be a call, so that the tools' schemas constrain it: any model, however small, writes one that
can be run. Then the model may call or answer, and in the end it has to answer.
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
CHOICES: tuple[Any, ...] = ("required", "auto", "auto", "none")
MAX_TOKENS = 200  # of an answer
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


def through_chat(url: str, model: str, question: str) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        messages: list[Any] = [{"role": "user", "content": question}]
        tools: list[Any] = [
            {"type": "function", "function": {"name": name, "description": TOOLS[name][0], "parameters": schema}}
            for name, schema in SCHEMAS.items()
        ]
        for choice in CHOICES:
            reply = client.chat.completions.create(
                model=model, messages=messages, tools=tools, tool_choice=choice, temperature=0, max_tokens=MAX_TOKENS
            ).choices[0].message  # fmt: skip
            if not reply.tool_calls:
                break
            messages.append(reply.model_dump(exclude_none=True))
            for made in reply.tool_calls:
                result = call(made.function.name, json.loads(made.function.arguments))
                messages.append({"role": "tool", "tool_call_id": made.id, "content": result})
        return reply.content


def through_responses(url: str, model: str, question: str) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        items: list[Any] = [{"role": "user", "content": question}]
        tools: list[Any] = [
            {"type": "function", "name": name, "description": TOOLS[name][0], "parameters": schema, "strict": True}
            for name, schema in SCHEMAS.items()
        ]
        for choice in CHOICES:
            reply = client.responses.create(
                model=model, input=items, tools=tools, tool_choice=choice, temperature=0, max_output_tokens=MAX_TOKENS
            )
            made = [item for item in reply.output if item.type == "function_call"]
            if not made:
                break
            for item in made:
                result = call(item.name, json.loads(item.arguments))
                items += [item.model_dump(exclude_none=True)]
                items += [{"type": "function_call_output", "call_id": item.call_id, "output": result}]
        return reply.output_text


def through_messages(url: str, model: str, question: str) -> str:
    with anthropic.Anthropic(base_url=url, api_key="none") as client:
        messages: list[Any] = [{"role": "user", "content": question}]
        tools: list[Any] = [
            {"name": name, "description": TOOLS[name][0], "input_schema": schema} for name, schema in SCHEMAS.items()
        ]
        for choice in CHOICES:
            reply = client.messages.create(
                model=model,
                messages=messages,
                tools=tools,
                tool_choice={"type": "any" if choice == "required" else choice},
                max_tokens=MAX_TOKENS,
                extra_body={"temperature": 0},
            )
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": call(block.name, block.input)}
                for block in reply.content
                if block.type == "tool_use"
            ]
            if not results:
                break
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
        return "".join(block.text for block in reply.content if block.type == "text")


def main(url: str, question: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
    for through in (through_chat, through_responses, through_messages):
        print(f"{through.__name__}:")
        print(f"  {through(url, model, question)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
