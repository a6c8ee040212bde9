"""SPIRe drafts, one number at a time: what each says behind tokens that its target evaluated."""

import math
from typing import Any

from scalar import FLOAT32, FP16, Random, pattern_of, patterns_hex, value_of

Vector = list[float]
Matrix = list[Vector]

BASE = {
    "model_type": "spire",
    "layer_type": "llama",
    "hidden_size": 4,
    "intermediate_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "vocab_size": 5,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100.0,
    "tie_word_embeddings": False,
    "target_layers": [1, 3],
    "sink": 1,
    "window": 3,
    "past_memory": "target",
}
# what differs, tokens of the text that the target evaluated, tokens that the draft evaluates behind them
CASES = {
    "nothing before": ({}, [], [3, 1, 4]),
    "the window is not full": ({}, [2], [3, 1]),
    "between sink and window": ({}, [2, 0, 4, 4, 1], [3, 1, 4, 0]),
    "sinks of its own": ({"sink": 3, "window": 2}, [2], [3, 1, 4, 0]),
    "itself alone": ({"sink": 0, "window": 1}, [2, 0], [3, 1]),
    "embeddings": ({"past_memory": "embeddings"}, [2, 0, 4, 4, 1], [3, 1, 4, 0]),
    "tied": ({"tie_word_embeddings": True, "target_layers": [0, 1]}, [2, 0], [3, 1]),
}


def spire() -> dict[str, Any]:
    random, cases = Random(11), []
    for name, (changes, past, tokens) in CASES.items():
        config = BASE | changes
        patterns = weights_of(config, random)
        stored = [[pattern_of(4 * random.bell(), FLOAT32) for _ in range(4)] for _ in range(2 * len(past))]
        states = [[float(value_of(pattern, FLOAT32)) for pattern in row] for row in stored]
        values = {key: [[float(value_of(p, FP16)) for p in row] for row in rows] for key, rows in patterns.items()}
        logits = run(config, values, [states[: len(past)], states[len(past) :]], past, tokens)
        cases.append(
            {
                "name": name,
                "config": config,
                "tensors": {
                    key: {"shape": [len(rows), len(rows[0])], "f16": [patterns_hex(row, 4) for row in rows]}
                    for key, rows in patterns.items()
                },
                "past": past,
                "states": [patterns_hex(row, 8) for row in stored],
                "tokens": tokens,
                "logits": [[float(f"{value:.6g}") for value in row] for row in logits],
            }
        )
    return {"cases": cases}


def weights_of(config: dict[str, Any], random: Random) -> dict[str, list[list[int]]]:
    """Patterns of all tensors; a vector is a matrix of one row."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads, vocab_size = head * config["num_attention_heads"], head, config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab_size, hidden), "model.norm.weight": (1, hidden)}
    for layer in range(2):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.input_layernorm.weight": (1, hidden),
            f"{name}.post_attention_layernorm.weight": (1, hidden),
            f"{name}.self_attn.q_proj.weight": (heads, hidden),
            f"{name}.self_attn.k_proj.weight": (kv_heads, hidden),
            f"{name}.self_attn.v_proj.weight": (kv_heads, hidden),
            f"{name}.self_attn.o_proj.weight": (hidden, heads),
            f"{name}.mlp.gate_proj.weight": (inner, hidden),
            f"{name}.mlp.up_proj.weight": (inner, hidden),
            f"{name}.mlp.down_proj.weight": (hidden, inner),
        }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab_size, hidden)
    shapes["spire.memory_weights"] = (2, 3)
    return {
        name: [[pattern_of(4 * random.bell() + name.count("norm"), FP16) for _ in range(columns)] for _ in range(rows)]
        for name, (rows, columns) in shapes.items()
    }


def run(
    config: dict[str, Any], weights: dict[str, Matrix], states: list[Matrix], past: list[int], tokens: list[int]
) -> Matrix:
    """The logits behind each token that the draft evaluates."""
    embedding, head_dim = weights["model.embed_tokens.weight"], config["head_dim"]
    mixing = [softmax(row) for row in weights["spire.memory_weights"]]
    drafted: list[Matrix] = []  # x[0..n] of each token so far
    logits: Matrix = []
    for token in tokens:
        position = len(past) + len(drafted)
        xs = [embedding[token]]
        for layer in range(2):
            name, x = f"model.layers.{layer}", xs[-1]

            def projected(part: str, source: Vector, name: str = name) -> Vector:
                h = rms_norm(source, weights[f"{name}.input_layernorm.weight"][0], config["rms_norm_eps"])
                return product(weights[f"{name}.self_attn.{part}_proj.weight"], h)

            def memory(at: int, layer: int = layer) -> Vector:
                if at >= len(past):
                    own = drafted[at - len(past)]
                    return [sum(s * x[i] for s, x in zip(mixing[layer], own, strict=True)) for i in range(4)]
                return states[layer][at] if config["past_memory"] == "target" else embedding[past[at]]

            seen = [at for at in range(position) if at < config["sink"] or at > position - config["window"]]
            sources = [*((at, memory(at)) for at in seen), (position, x)]
            keys = [rotated(projected("k", source), at, config) for at, source in sources]
            values = [projected("v", source) for _, source in sources]
            queries, mixed = projected("q", x), []
            for start in range(0, len(queries), head_dim):
                query = rotated(queries[start : start + head_dim], position, config)
                shares = softmax([dot(query, key) / math.sqrt(head_dim) for key in keys])
                mixed += [sum(s * v[i] for s, v in zip(shares, values, strict=True)) for i in range(head_dim)]
            x = added(x, product(weights[f"{name}.self_attn.o_proj.weight"], mixed))
            h = rms_norm(x, weights[f"{name}.post_attention_layernorm.weight"][0], config["rms_norm_eps"])
            gate, up = (product(weights[f"{name}.mlp.{part}_proj.weight"], h) for part in ("gate", "up"))
            inner = [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up, strict=True)]
            xs.append(added(x, product(weights[f"{name}.mlp.down_proj.weight"], inner)))
        drafted.append(xs)
        last = rms_norm(xs[-1], weights["model.norm.weight"][0], config["rms_norm_eps"])
        logits.append(product(weights.get("lm_head.weight", embedding), last))
    return logits


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def product(matrix: Matrix, x: Vector) -> Vector:
    return [dot(row, x) for row in matrix]


def added(a: Vector, b: Vector) -> Vector:
    return [x + y for x, y in zip(a, b, strict=True)]


def rms_norm(x: Vector, scale: Vector, eps: float) -> Vector:
    root = math.sqrt(dot(x, x) / len(x) + eps)
    return [value / root * s for value, s in zip(x, scale, strict=True)]


def softmax(x: Vector) -> Vector:
    shares = [math.exp(value - max(x)) for value in x]
    return [share / sum(shares) for share in shares]


def rotated(x: Vector, position: int, config: dict[str, Any]) -> Vector:
    """RoPE of one head: pairs (j, j + head_dim / 2)."""
    half = len(x) // 2
    angles = [position * config["rope_theta"] ** (-j / half) for j in range(half)]
    first = [x[j] * math.cos(angles[j]) - x[j + half] * math.sin(angles[j]) for j in range(half)]
    return first + [x[j + half] * math.cos(angles[j]) + x[j] * math.sin(angles[j]) for j in range(half)]
