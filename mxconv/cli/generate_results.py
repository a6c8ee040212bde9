"""The results of `mxconv generate`, as JSON and as a table."""

from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from mxconv.cli.output import Output

if TYPE_CHECKING:
    from mxconv.decode import Answer
    from mxconv.text.messages import Prompt

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
    from mxconv.speculation.prompts import text_of

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
