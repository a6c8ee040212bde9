"""What the page's own models compute from: the numbers of a question that do not move with its sliders."""

from collections import Counter
from typing import Any

from mxconv.cost.accelerator.machine import Machine
from mxconv.cost.accelerator.passes import MODE_BITS, tokens_at_once
from mxconv.cost.architecture import Architecture
from mxconv.cost.counts import BITS, KV_BYTES, multiplied_weights, state_bytes
from mxconv.cost.hardware import Hardware
from mxconv.cost.levels import CostLevel, accelerator_mode
from mxconv.cost.report import Question, body_of, intensity_of
from mxconv.cost.roofline import KERNELS, attention_form
from mxconv.cost.surfaces import BATCHES
from mxconv.cost.throughput import SPIRE_DRAFT_TOKENS, SPIRE_DRAFTS, BatchedDraft
from mxconv.cost.trace import acceptance_of
from mxconv.report.text import printable

CONTEXTS = [2**power for power in range(4, 25)]
SHORTEST_RANGE = 8192  # of the context slider, of models with fewer positions
ROOFLINE_TOKENS = (1, 2, 4, 8, 16)


def page_data(question: Question, report: dict[str, Any]) -> dict[str, Any]:
    """Plain data for templates/cost_models.js and cost_answers.js, which compute what mxconv/cost/ computes.

    Args:
        question: what was asked; its values are where the sliders stand first.
        report: the answer to it.
    """
    levels = question.levels
    places = {level.name + level.codec: index for index, level in enumerate(levels)}
    own = question.workload
    longest = max(question.architecture.max_position_embeddings, SHORTEST_RANGE)
    return {
        "hardware": _hardware(question.hardware),
        "peaks": question.hardware.peaks,
        "kv_bytes_per_value": KV_BYTES[own.kv_dtype],
        "batches": sorted({*BATCHES, own.batch}),
        "contexts": sorted({own.context, *(context for context in CONTEXTS if context <= longest)}),
        "levels": [_level(question.hardware, level) for level in levels],
        "strategies": [
            {"name": printable(name), "levels": [places[level.name + level.codec] for level in found]}
            for name, found in question.strategies.items()
        ],
        "drafts": _drafts(question),
        "lengths": _lengths(question, report),
        "throughput": None if question.architecture.num_experts else _throughput(question),
        "roofline_tokens": ROOFLINE_TOKENS,
        "traces": _traces(report),
    }


def _lengths(question: Question, report: dict[str, Any]) -> list[float]:
    """Where the sliders of draft tokens stand: as given, else at what the best advice of that depth would draft."""
    lengths = question.lengths(max(1, *(len(found) - 1 for found in question.strategies.values())))
    if question.num_draft_tokens is not None:
        return lengths
    choices = report["advice"]["choices"]  # the fastest first
    for depth in range(len(lengths)):
        advised = next((row for row in choices if len(row["num_draft_tokens"]) > depth), None)
        if advised is not None:
            drafted = advised["num_draft_tokens"][depth] if depth else advised["num_drafted"]
            lengths[depth] = float(max(round(drafted), 1))
    return lengths


def _hardware(hardware: Hardware) -> dict[str, Any]:
    machine = Machine.of(hardware) if hardware.accelerator else None
    return {
        "read_bandwidth": hardware.read_bandwidth,
        "fractions": {kernel: sorted(shares.items()) for kernel, shares in hardware.fractions.items()},
        "accelerator": machine
        and {
            "num_elements_per_tile": machine.num_elements_per_tile,
            "clock_megahertz": machine.clock_megahertz,
        },
    }


def _level(hardware: Hardware, level: CostLevel) -> dict[str, Any]:
    a = level.architecture
    found: dict[str, Any] = {"name": printable(level.name), "codec": level.codec, "is_free": a is None}
    found["rows_per_token"] = level.rows_per_token
    if a is None:
        return found
    kernel, form = KERNELS[level.codec]
    bits = BITS[level.codec] if level.num_bytes is None else 8 * level.num_bytes / multiplied_weights(a)
    found |= _sizes(a) | {
        "kernel": kernel,
        "peak": hardware.peak(form),
        "attention_peak": hardware.peak(attention_form(hardware)),
        "bits_per_weight": bits,
    }
    if hardware.accelerator:
        machine = Machine.of(hardware)
        mode = accelerator_mode(level)
        found |= {
            "tokens_at_once": tokens_at_once(machine, a),
            "weights_per_cycle": getattr(machine, f"{mode}_weights_per_cycle"),
            "accelerator_bits": MODE_BITS[mode],
        }
    return found


def _sizes(a: Architecture) -> dict[str, Any]:
    """What a pass multiplies: weights that all tokens share, those of all experts, and values of the cache."""
    experts = a.num_expert_layers * a.hidden_size * 3 * a.expert_size * a.num_experts
    seen = Counter((each.window, each.kv_values, each.multiply_adds) for each in a.mixers)
    return {
        "fixed_weights": multiplied_weights(a, 0),
        "expert_weights": experts,
        "num_experts": a.num_experts,
        "num_experts_per_token": a.num_experts_per_token,
        "state_bytes": 2 * state_bytes(a),  # read and written
        "state_multiply_adds": sum(each.state_multiply_adds for each in a.mixers),
        "attention": [  # values of one layer and position
            {"window": window, "kv_values": kv_values, "query_values": query_values, "count": count}
            for (window, kv_values, query_values), count in seen.items()
        ],
    }


def _drafts(question: Question) -> list[dict[str, Any]]:
    """Every draft once, by name: what an acceptance slider is for."""
    found = {level.name: level for own in question.strategies.values() for level in own[1:]}
    return [
        {"name": printable(name), "acceptance": level.acceptance, "source": printable(level.acceptance_source)}
        for name, level in found.items()
    ]


def _throughput(question: Question) -> dict[str, Any]:
    body = body_of(question.architecture)
    return {
        "intensity": intensity_of(question.hardware),
        "target": {"num_parameters": body.num_parameters, "kv_bytes_per_position": body.kv_bytes_per_position},
        "drafts": [{"name": name, **_batched(make(body))} for name, make in SPIRE_DRAFTS.items()],
    }


def _batched(draft: BatchedDraft) -> dict[str, Any]:
    body = draft.body
    memory = 2 * body.kv_bytes_per_position * body.hidden_size if draft.projects_memory else 0
    return {
        "num_parameters": body.num_parameters,
        "kv_bytes_per_position": body.kv_bytes_per_position,
        "memory_flops": memory,
        "window_fraction": draft.window_fraction,
        "num_sinks": draft.num_sinks,
        "acceptance": acceptance_of(draft.tokens_per_round - 1, SPIRE_DRAFT_TOKENS),
    }


def _traces(report: dict[str, Any]) -> list[dict[str, Any]]:
    predictions = report.get("predictions", {"strategies": [], "acceptance_by_position": {}})
    return [
        {
            "name": printable(row["strategy"]),
            "levels": [printable(level) for level in row["levels"]],
            "acceptance": row["acceptance"],
            "by_position": predictions["acceptance_by_position"].get(row["strategy"], []),
            "measured": row["measured_tokens_per_second"],
            "predicted": row["predicted_tokens_per_second"],
            "equation": row["equation_tokens_per_second"],
        }
        for row in predictions["strategies"]
    ]
