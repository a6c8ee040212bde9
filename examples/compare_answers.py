"""Whether a server's answers depend on its load or on drafts: requests alone and side by side, drafted and plainly.

    mxconv serve PACKAGE
    python examples/compare_answers.py http://127.0.0.1:8000 examples/prompts.jsonl --at-a-time 1,4,16

It prints tokens a second of every load, and ends with an error where a token differs. Request number i has the seed i.
guidellm and `vllm bench serve` measure how long clients wait (docs/serving.md).
"""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice
from pathlib import Path

import httpx
import typer

from mxconv.text.messages import read_prompts


def main(
    url: str,
    prompts: Path,
    at_a_time: str = "1,4,16",
    num_requests: int = 32,
    max_tokens: int = 64,
    temperature: float = 0.0,
) -> None:
    bodies = []
    for seed, prompt in enumerate(islice(cycle(read_prompts(prompts)), num_requests)):
        asked = {"prompt" if isinstance(prompt, str) else "messages": prompt}
        bodies.append(asked | {"max_tokens": max_tokens, "temperature": temperature, "seed": seed})
    expected: list[list[int]] | None = None
    for count in map(int, at_a_time.split(",")):
        for drafts in (False, True):

            def ask(body: dict[str, object], drafts: bool = drafts) -> list[int]:
                path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
                asked = body | {"mxconv": {"trace": True, "drafts": drafts}}
                answer = httpx.post(url + path, json=asked, timeout=600).raise_for_status().json()
                return [token["id"] for token in answer["choices"][0]["mxconv"]["tokens"]]

            begin = time.perf_counter()
            with ThreadPoolExecutor(count) as pool:
                found = list(pool.map(ask, bodies))
            rate = sum(map(len, found)) / (time.perf_counter() - begin)
            print(f"{count} at a time, {'drafts' if drafts else 'plain'}: {rate:.1f} tokens a second")
            expected = expected or found
            if found != expected:
                raise SystemExit("tokens differ from those of the first load without drafts")


if __name__ == "__main__":
    typer.run(main)
