"""What `mxconv generate` tells of its texts: as JSON and as a table."""

from typing import TYPE_CHECKING, Any

from mxconv.cli.output import console

if TYPE_CHECKING:
    from mxconv.serving.batch import BatchAnswer
    from mxconv.speculation.text_model import Answer
    from mxconv.text.messages import Prompt

MIN_TOKENS_OF_A_SPEED = 24  # in fewer tokens what a level costs is not yet known, and the clock says little


def result_of(prompt: "Prompt", answer: "Answer | BatchAnswer") -> dict[str, Any]:
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
        "levels": [
            {
                "name": level.name,
                "num_forwards": level.num_forwards,
                "num_proposed": level.num_proposed,
                "num_nodes": level.num_nodes,
                "nodes_by_depth": level.nodes_by_depth,
                "num_accepted": level.num_accepted,
                "acceptance_rate": level.acceptance_rate,
                "acceptance_by_position": level.acceptance_by_position,
                "seconds": level.seconds,
            }
            for level in generation.trace.statistics
        ],
    } | ({"error": str(error)} if (error := getattr(answer, "error", None)) is not None else {})


def geomean(numbers: list[float]) -> float:
    """Geometric mean."""
    from math import exp, log

    return exp(sum(log(number) for number in numbers) / len(numbers))


def print_results(members: dict[str, Any], json_output: bool, with_texts: bool) -> None:
    """A table of the levels over all texts. `seconds` is there where they came side by side."""
    from rich.markup import escape
    from rich.table import Table

    out = console(json_output)
    results = members["results"]
    for result in results if with_texts else []:
        out.print(f"[dim]{escape(result['prompt'])}[/dim]{escape(result['text'])}", highlight=False)
    has_trees = any(level["num_nodes"] > level["num_proposed"] for result in results for level in result["levels"])
    nodes = ["nodes"] if has_trees else []
    table = Table("level", "forward passes", "proposed", *nodes, "accepted", "acceptance", "seconds")
    for index, level in enumerate(results[0]["levels"]):
        total = {
            key: sum(result["levels"][index][key] for result in results)
            for key in ("num_forwards", "num_proposed", "num_nodes", "num_accepted", "seconds")
        }
        rate = f"{total['num_accepted'] / total['num_proposed']:.3f}" if total["num_proposed"] else ""
        table.add_row(
            level["name"],
            str(total["num_forwards"]),
            str(total["num_proposed"] or ""),
            *([str(total["num_nodes"] or "")] if has_trees else []),
            str(total["num_accepted"] or ""),
            rate,
            f"{total['seconds']:.2f}",
        )
    out.print(table)
    num_tokens = sum(len(result["token_ids"]) for result in results)
    seconds = members.get("seconds", sum(result["seconds"] for result in results))
    rounds = sum(result["rounds"] for result in results)
    tells_speed = num_tokens >= MIN_TOKENS_OF_A_SPEED
    rate = _rate(results, "decoding_tokens_per_second") if tells_speed and "seconds" not in members else ""
    out.print(
        # an interrupt may come before the first round
        f"{num_tokens} tokens in {rounds} rounds of the target ({num_tokens / max(rounds, 1):.2f} a round), "
        f"{seconds:.1f} s{rate}",
        highlight=False,
    )
    if "geomean_speedup" in members:
        beside = f" with as many at a time ({members['plain_seconds']:.1f} s)" if "plain_seconds" in members else ""
        checked = [result["identical_to_target"] for result in results if "identical_to_target" in result]
        plainly = _rate(results, "plain_tokens_per_second")
        speed = (
            f"{plainly}; {members['geomean_speedup']:.2f}x its speed{beside}" if tells_speed else "; too few to time"
        )
        out.print(
            f"{sum(checked)} of {len(checked)} texts identical to plain decoding of {members['target']}{speed}",
            markup=False,
            highlight=False,
        )


def _rate(results: list[dict[str, Any]], key: str) -> str:
    """The mean speed of texts that were decoded one after the other."""
    rates = [result[key] for result in results if result.get(key)]
    return f" ({geomean(rates):.1f} tokens a second after the prompt)" if rates else ""
