"""Drafting ahead while the target verifies (PEARL), on two threads, against the same two models in turn.

    python examples/papers/pearl.py TARGET DRAFT PROMPTS.jsonl [NUM_PROMPTS] [LENGTH] [--in-turn-threads N]

TARGET and DRAFT are packages.

Each model has an engine of its own with one thread, and a pass releases the interpreter, so that both run at once: the
target verifies what was proposed, the draft meanwhile goes on as if all of it were accepted. Where it is, and the
target's next token is the first that was drafted ahead, the rest of that is the next proposal; otherwise it is thrown
away. Both must write the target's own greedy text. The last line is one JSON object.

Source:
    PEARL: Parallel Speculative Decoding with Adaptive Draft Length, arXiv 2408.11850 (pre-verify and post-verify; the
    length here is fixed).
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.cache import KVCache
from mxconv.engine.decoder import Decoder
from mxconv.speculation.prompts import read_prompts
from mxconv.speculation.session import Session
from mxconv.text.chat import encode_prompts
from mxconv.text.distribution import greedy

MAX_NEW_TOKENS = 64


@dataclass
class Counts:
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0


class Model:
    """A decoder and its cache."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.session = decoder, Session(KVCache(decoder.config))

    def write(self, context: list[int], count: int) -> list[int]:
        """The next `count` tokens, one pass each."""
        tokens: list[int] = []
        for _ in range(count):
            text = [*context, *tokens]
            tokens.append(int(greedy(self.session.feed(self.decoder, self.session.align(text), 1))[0]))
        return tokens

    def verify(self, context: list[int], proposed: list[int]) -> list[int]:
        """Its own tokens in one pass: as many of the proposed ones as it accepts, and one more."""
        missing = self.session.align(context)
        choices = greedy(self.session.feed(self.decoder, [*missing, *proposed], len(proposed) + 1)).tolist()
        accepted = 0
        while accepted < len(proposed) and proposed[accepted] == choices[accepted]:
            accepted += 1
        return [int(token) for token in choices[: accepted + 1]]


def decode(target: Model, draft: Model, prompt: list[int], length: int, ahead: bool, counts: Counts) -> list[int]:
    """Greedy text of MAX_NEW_TOKENS tokens."""
    text: list[int] = list(prompt)
    pending: list[int] = []
    begin = time.perf_counter()
    with ThreadPoolExecutor(1) as other:
        while len(text) < len(prompt) + MAX_NEW_TOKENS:
            if ahead:  # what may follow the pending tokens: the target's own token, and a next proposal
                drafting = other.submit(draft.write, [*text, *pending], length + 1)
            else:
                pending = draft.write(text, length)
            emitted = target.verify(text, pending)
            counts.rounds += 1
            counts.accepted += len(emitted) - 1
            all_accepted = len(emitted) == len(pending) + 1
            text += emitted
            counts.drafted += length + ahead
            if ahead:
                begun = drafting.result()
                pending = begun[1:] if all_accepted and begun[0] == emitted[-1] else []
    counts.seconds += time.perf_counter() - begin
    counts.tokens += MAX_NEW_TOKENS
    return text[: len(prompt) + MAX_NEW_TOKENS]


def main(
    target: Path,
    draft: Path,
    prompts: Path,
    num_prompts: Annotated[int, typer.Argument()] = 10,
    length: Annotated[int, typer.Argument()] = 4,
    in_turn_threads: Annotated[int | None, typer.Option(help="of both models in turn; all by default")] = None,
) -> None:
    found, texts = {}, {}
    for name, threads in (("in turn", in_turn_threads), ("ahead", 1)):
        loaded = [LoadedPackage(package, ["target"], num_threads=threads) for package in (target, draft)]
        decoders = [package.levels[0].decoder for package in loaded]
        read = read_prompts(prompts)[:num_prompts]
        ids = encode_prompts(loaded[0].tokenizer, loaded[0].folder, read)
        counts, texts[name] = Counts(), []
        for prompt in ids:
            models = [Model(decoder) for decoder in decoders if decoder is not None]
            texts[name].append(decode(models[0], models[1], prompt, length, name == "ahead", counts))
        plain = [[*p, *Model(decoders[0]).write(p, MAX_NEW_TOKENS)] for p in ids if decoders[0] is not None]
        assert texts[name] == plain, f"{name}: the text is not the target's own"
        found[name] = asdict(counts)
        for package in loaded:
            package.close()
    print(json.dumps(found))


if __name__ == "__main__":
    typer.run(main)
