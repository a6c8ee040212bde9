"""Requests run side by side, in any order, with others joining and leaving; and what each of them is alone."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tiny_levels import Decoded, by_hand, decoder_of

from mxconv.engine.kv_pool import PAGE
from mxconv.serving.llm_engine import Engine
from mxconv.serving.sequence import Sequence as Running
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.selection import Request

Cancels = Callable[[int, int], bool]  # of the number of a request and that of its tokens so far


@dataclass
class Heard:
    """What steps said of each sequence."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logits: dict[int, list[bytes]] = field(default_factory=dict)
    guessed_by: set[str | None] = field(default_factory=set)
    most_running: int = 0
    num_set_back: int = 0


def position_bytes(hierarchy: Hierarchy) -> int:
    """Of all caches that a text has."""
    caches = [*(decoder.new_cache() for decoder in hierarchy.cached_decoders()), *hierarchy.reader_caches()]
    return sum(cache.pool.page_bytes for cache in caches) // PAGE


def run_all(
    engine: Engine, requests: Iterable[Request], cancels: Cancels = lambda *_: False
) -> tuple[list[Running], Heard]:
    """Submit all and step until nothing is left; `cancels` says whether to give up a request after so many tokens."""
    sequences = [engine.submit(request) for request in requests]
    numbers = {id(sequence): number for number, sequence in enumerate(sequences)}
    heard = Heard({n: [] for n in range(len(sequences))}, {n: [] for n in range(len(sequences))})
    ran: set[int] = set()
    while not engine.is_idle:
        for each in engine.step():
            number = numbers[id(each.sequence)]
            heard.tokens[number].append(each.token)
            heard.logits[number].append(each.logits.tobytes())
            heard.guessed_by.add(each.guessed_by)
        running = {numbers[id(sequence)] for sequence in engine.running}
        heard.most_running = max(heard.most_running, len(running))
        heard.num_set_back += len(ran & {numbers[id(sequence)] for sequence in engine.waiting} - running)
        ran = running
        for number, sequence in enumerate(sequences):
            if not sequence.is_done and cancels(number, len(heard.tokens[number])):
                engine.cancel(sequence)
    return sequences, heard


def assert_as_alone(
    target: LoadedLevel,
    requests: Sequence[Request],
    sequences: Sequence[Running],
    heard: Heard,
    known: Sequence[Decoded] | None = None,
) -> None:
    """Tokens, logits and endings are those of plain decoding alone; of what was given up, as far as it came.

    `known` is what each request is alone; None decodes it here.
    """
    for number, (request, sequence) in enumerate(zip(requests, sequences, strict=True)):
        generation = sequence.generation
        expected = alone(target, request) if known is None else known[number]
        assert sequence.is_done and sequence.error is None
        assert heard.tokens[number] == generation.token_ids == expected.token_ids[: len(generation.token_ids)]
        assert heard.logits[number] == expected.logits[: len(generation.token_ids)]
        if generation.ending != "interrupted":
            stopped = expected.token_ids[-1] in request.stop_tokens
            assert (generation.ending, generation.token_ids) == ("stop" if stopped else "length", expected.token_ids)


def alone(target: LoadedLevel, request: Request) -> Decoded:
    """What plain decoding makes of a request."""
    return by_hand(decoder_of(target), request.prompt, request.max_new_tokens, request.stop_tokens, request.selection)


def random_prompt(random: np.random.Generator, vocab_size: int, num_tokens: int) -> list[int]:
    """With a part that comes twice, for look-ups to find."""
    part = random.integers(0, vocab_size, (num_tokens + 1) // 2).tolist()
    return [*part, *part][:num_tokens]
