"""Many requests with one answer each, whatever runs beside them: tokens and logits, bit by bit.

    python examples/certify_batches.py CHECKPOINT [NUM_REQUESTS [AT_A_TIME,... [DRAFT ...]]]

Requests are greedy and drawn with seeds of their own, some with penalties; most begin with the same text, kept once.
Each is decoded alone, plainly; then all of them 1, 2, 5 and 16 (or AT_A_TIME) at a time with trees of 16 nodes, in
random order, some given up on the way, caches so small that texts are set back. Targets are the 16-bit weights, stored
as they are and as BSFP; the 4-bit copy and what is below it draft: prompt-lookup, every DRAFT, or nothing for `none`.
"""

import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mxconv.arrays import F32
from mxconv.checkpoint.source import open_checkpoint
from mxconv.conversion.options import QuantizeOptions
from mxconv.convert import convert
from mxconv.drafts.kinds import parse_draft
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.kv_pool import PAGE
from mxconv.serving.llm_engine import Engine
from mxconv.speculation.hierarchy import Hierarchy
from mxconv.speculation.selection import Request, Selection
from mxconv.text.distribution import Penalties, Sampling

Observed = list[tuple[int, bytes]]  # tokens, each with the SHA-256 of the logits that chose it
SHARED, LONGEST = 2 * PAGE + 7, 140  # tokens of the beginning, and of an answer


def requests_of(count: int, vocab_size: int, random: np.random.Generator) -> list[Request]:
    beginning = random.integers(3, vocab_size, SHARED).tolist()
    made = []
    for seed in range(count):
        own = random.integers(3, vocab_size, int(random.integers(1, 40))).tolist()
        prompt = own if seed % 4 == 3 else [*beginning, *own]
        penalties = Penalties(1.1, 0.2, 0.1) if seed % 3 == 0 else Penalties()
        sampling = None if seed % 2 else Sampling(0.9, top_p=0.95 if seed % 4 else 1.0)
        selection = Selection(sampling, seed=seed, penalties=penalties)
        made.append(Request(prompt, LONGEST if seed % 5 == 0 else int(random.integers(1, 48)), (), selection))
    return made


def alone(hierarchy: Hierarchy, request: Request) -> Observed:
    digests: list[bytes] = []

    def keep(_: int, logits: F32) -> None:
        digests.append(hashlib.sha256(logits.tobytes()).digest())

    plain = Hierarchy(hierarchy.levels[:1])
    tokens = plain.generate(request.prompt, request.max_new_tokens, (), keep, request.selection).token_ids
    return list(zip(tokens, digests, strict=True))


def together(
    hierarchy: Hierarchy, requests: Sequence[Request], expected: Sequence[Observed], at_a_time: int, kv_bytes: int
) -> str:
    """Count tokens and logits of all requests in one engine that differ from those decoded alone."""
    random = np.random.default_rng(at_a_time)
    engine = Engine(hierarchy, at_a_time, kv_bytes)
    order = random.permutation(len(requests)).tolist()
    given_up_at = {number: int(random.integers(1, 30)) for number in order if random.random() < 0.15}
    sequences = {number: engine.submit(requests[number]) for number in order}
    observed: dict[int, Observed] = {number: [] for number in order}
    numbers = {sequence: number for number, sequence in sequences.items()}
    ran: set[int] = set()
    num_set_back, begin = 0, time.perf_counter()
    while not engine.is_idle:
        for each in engine.step():
            observed[numbers[each.sequence]].append((each.token, hashlib.sha256(each.logits.tobytes()).digest()))
        waiting = {numbers[sequence] for sequence in engine.waiting}
        num_set_back += len(ran & waiting)
        ran = {numbers[sequence] for sequence in engine.running}
        for number, tokens in given_up_at.items():
            if len(observed[number]) >= tokens:
                engine.cancel(sequences[number])
    seconds = time.perf_counter() - begin
    pairs = [pair for number in order for pair in zip(observed[number], expected[number], strict=False)]
    num_wrong = sum(ours != theirs for ours, theirs in pairs)
    whole = [number for number in order if sequences[number].generation.ending != "interrupted"]
    num_short = sum(len(observed[number]) != len(expected[number]) for number in whole)
    return (
        f"{at_a_time} at a time: {len(order)} requests, {len(order) - len(whole)} given up, {num_set_back} set back, "
        f"{len(pairs)} tokens in {seconds:.1f} s; {num_wrong} tokens or logits differ, {num_short} texts end elsewhere"
    )


def main(checkpoint: Path, num_requests: int = 200, widths: str = "1,2,5,16", *drafts: str) -> None:
    specs = [parse_draft(text) for text in drafts or ("prompt-lookup",) if text != "none"]
    for codec, name in (("mxfp4", "as they are"), ("bsfp", "BSFP")):
        package = Path(tempfile.mkdtemp()) / codec
        with open_checkpoint(checkpoint) as source:
            convert(source, package, QuantizeOptions(codec=codec))
        with LoadedPackage(package, ["target", codec], drafts=specs) as loaded:
            hierarchy = Hierarchy(loaded.levels, [4, *[8] * len(specs)], tree=16)
            requests = requests_of(num_requests, hierarchy.vocab_size, np.random.default_rng(1))
            expected = [alone(hierarchy, request) for request in requests]
            caches = [decoder.new_cache(1) for decoder in hierarchy.cached_decoders()]
            pages = sum(cache.pool.page_bytes for cache in (*caches, *hierarchy.reader_caches()))
            for at_a_time in map(int, widths.split(",")):
                seen = together(hierarchy, requests, expected, at_a_time, (6 + at_a_time // 2) * pages)
                print(f"16 bits, {name}, {seen}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:])
