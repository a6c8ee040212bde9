"""The results of `mxconv generate`: as JSON, as a table, and as a trace, JSON lines of rounds and levels.

The target's line of a round also has, where the trace records trees:

    tree        what was proposed to it, and what became of it: `draft`, `tokens`, `parents`, `probabilities` (empty
                where the draft has none), `path` (the accepted nodes), `emitted`; `texts` and `emitted_texts` are
                labels
    num_tokens  how many of `emitted` the text got: fewer than all where it ends among them, and then `emitted` ends too
    text        what they added to it; a character whose bytes come in several rounds is in the last of them
    prompt_text in a prompt's first round, with `cpu`, the processor that decoded
"""

from collections.abc import Iterator, Sequence
from math import isfinite
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from mxconv.cli.output import Output

if TYPE_CHECKING:
    from mxconv.decode import Answer
    from mxconv.speculation.statistics import Generation, RoundTree
    from mxconv.text.messages import Prompt
    from mxconv.text.tokenizer import Tokenizer

MIN_TOKENS_OF_A_SPEED = 24  # with fewer tokens the costs of levels are not yet known, and the clock is too coarse
LEVEL_KEYS = (
    "name", "num_forwards", "num_proposed", "num_nodes", "nodes_by_depth", "num_accepted", "acceptance_rate",
    "acceptance_by_position", "seconds",
)  # fmt: skip
TABLE = {
    "level": ("name",),
    "forward passes": ("num_forwards",),
    "proposed": (lambda level: level["num_proposed"] or None,),
    "nodes": (lambda level: level["num_nodes"] or None,),
    "accepted": (lambda level: level["num_accepted"] or None,),
    "acceptance": (
        lambda level: level["num_accepted"] / level["num_proposed"] if level["num_proposed"] else None,
        ".3f",
    ),
    "seconds": ("seconds", ".2f"),
}


def result_of(prompt: "Prompt", answer: "Answer") -> dict[str, Any]:
    """The members of one text."""
    from mxconv.text.messages import text_of

    generation = answer.generation
    return {
        "prompt": text_of(prompt),
        **({} if isinstance(prompt, str) else {"messages": prompt}),
        "text": answer.text,
        "token_ids": generation.token_ids,
        "ending": generation.ending,
        "seconds": generation.seconds,
        "tokens_per_second": generation.tokens_per_second,
        "decoding_tokens_per_second": generation.decoding_tokens_per_second,
        "rounds": generation.trace.num_rounds,
        "levels": [{key: getattr(level, key) for key in LEVEL_KEYS} for level in generation.trace.statistics],
    } | ({"error": str(error)} if (error := answer.error) is not None else {})


def print_results(members: dict[str, Any], out: Output, with_texts: bool, with_levels: bool) -> None:
    """Print texts and a table of the levels, where these are wanted, and how fast they came. `seconds` is there where
    they came side by side."""
    results = members["results"]
    for result in results if with_texts else []:
        out.line(result["prompt"], "dim", end="")
        out.line(result["text"])
    totals = []
    for levels in zip(*(result["levels"] for result in results), strict=True):
        keys = ("num_forwards", "num_proposed", "num_nodes", "num_accepted", "seconds")
        totals.append({"name": levels[0]["name"]} | {key: sum(level[key] for level in levels) for key in keys})
    if with_levels:
        out.table(TABLE, totals)
    num_tokens = sum(len(result["token_ids"]) for result in results)
    seconds = members.get("seconds", sum(result["seconds"] for result in results))
    rounds = sum(result["rounds"] for result in results)
    tells_speed = num_tokens >= MIN_TOKENS_OF_A_SPEED
    rate = _rate(results, "decoding_tokens_per_second") if tells_speed and "seconds" not in members else ""
    out.line(  # an interrupt may come before the first round
        f"{num_tokens} tokens in {rounds} rounds of the target ({num_tokens / max(rounds, 1):.2f} a round), "
        f"{seconds:.1f} s{rate}"
    )
    if "geomean_speedup" in members:
        beside = f" with as many at a time ({members['plain_seconds']:.1f} s)" if "plain_seconds" in members else ""
        checked = [result["identical_to_target"] for result in results if "identical_to_target" in result]
        plainly = _rate(results, "plain_tokens_per_second")
        speed = (
            f"{plainly}; {members['geomean_speedup']:.2f}x its speed{beside}" if tells_speed else "; too few to time"
        )
        out.line(f"{sum(checked)} of {len(checked)} texts identical to plain decoding of {members['target']}{speed}")


def _rate(results: list[dict[str, Any]], key: str) -> str:
    """The mean speed of texts that were decoded one after the other."""
    rates = [result[key] for result in results if result.get(key)]
    return f" ({geometric_mean(rates):.1f} tokens a second after the prompt)" if rates else ""


def trace_lines(
    number: int, generation: "Generation", prompt_text: str, prompt: Sequence[int], tokenizer: "Tokenizer"
) -> Iterator[dict[str, Any]]:
    """The lines of one prompt, numbered from 0, and what it became."""
    from mxconv.system.processor import cpu_name
    from mxconv.text.text_stream import TextStream

    stream = TextStream(tokenizer, (), prompt)
    before: int | None = prompt[-1] if prompt else None
    left = list(generation.token_ids)
    for entry in generation.trace.entries:
        line = {"prompt": number, **entry._replace(tree=None)._asdict()}
        del line["tree"]
        if entry.tree is not None:
            emitted = list(entry.tree.emitted[: len(left)])
            del left[: len(emitted)]
            text = "".join(map(stream.feed, emitted)) + ("" if left else stream.finish())
            line |= {"tree": _tree(entry.tree, before, emitted, tokenizer), "num_tokens": len(emitted), "text": text}
            if entry.round == 0:
                line |= {"prompt_text": prompt_text, "cpu": cpu_name()}
            before = emitted[-1] if emitted else before
        yield line


def _tree(tree: "RoundTree", before: int | None, emitted: Sequence[int], tokenizer: "Tokenizer") -> dict[str, Any]:
    from mxconv.text.text_stream import token_label

    after = [before if parent < 0 else tree.tokens[parent] for parent in tree.parents]
    return {
        "draft": tree.draft,
        "tokens": list(tree.tokens),
        "parents": list(tree.parents),
        "probabilities": [round(share, 6) if isfinite(share) else None for share in tree.probabilities],
        "path": tree.path,
        "emitted": list(emitted),
        "texts": [token_label(tokenizer, *pair) for pair in zip(after, tree.tokens, strict=True)],
        "emitted_texts": [token_label(tokenizer, *pair) for pair in zip([before, *emitted], emitted, strict=False)],
    }
