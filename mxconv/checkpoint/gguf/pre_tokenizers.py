"""How text is cut before byte-level BPE: llama.cpp has a name for each way, tokenizer.json spells it out.

Source:
    the tokenizer.json files of the models named; `llm_tokenizer_bpe` in llama.cpp's llama-vocab.cpp.
"""

from typing import Any

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN_2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Step = tuple[str, object]

# Each step as _step gives it. The first name of equal ways is the one that is written.
PRE_TOKENIZERS: dict[str, tuple[Step, ...]] = {
    "gpt-2": (("ByteLevel", True),),
    "smollm": (("Digits", True), ("ByteLevel", True)),
    "llama-bpe": (("Split", _LLAMA_3), ("ByteLevel", False)),
    "qwen2": (("Split", _QWEN_2), ("ByteLevel", False)),
    "deepseek-r1-qwen": (("Split", _QWEN_2), ("ByteLevel", False)),
    "tekken": (("Split", _TEKKEN), ("ByteLevel", False)),
}


def pre_tokenizer_name(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """llama.cpp's name of the member `pre_tokenizer` of a tokenizer.json; None where this table has none."""
    steps = tuple(_step(part) for part in flattened(pre_tokenizer, "pretokenizers"))
    return next((name for name, known in PRE_TOKENIZERS.items() if known == steps), None)


def pre_tokenizer_json(name: str) -> dict[str, Any] | None:
    """The member `pre_tokenizer` of a tokenizer.json; None for a name that this table lacks."""
    if name not in PRE_TOKENIZERS:
        return None
    parts = [_part(kind, value) for kind, value in PRE_TOKENIZERS[name]]
    return parts[0] if len(parts) == 1 else {"type": "Sequence", "pretokenizers": parts}


def flattened(component: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """A component of a tokenizer.json as a list: the parts of a `Sequence`, or itself, or nothing."""
    if component is None:
        return []
    if component.get("type") == "Sequence":
        return [part for inner in component.get(members, []) for part in flattened(inner, members)]
    return [component]


def _step(part: dict[str, Any]) -> Step:
    kind = str(part.get("type"))
    if kind == "ByteLevel" and not part.get("add_prefix_space", False):
        return kind, part.get("use_regex", True)
    if kind == "Digits":
        return kind, part.get("individual_digits", False)
    if kind == "Split" and part.get("behavior") == "Isolated" and not part.get("invert", False):
        return kind, part.get("pattern", {}).get("Regex")
    return kind, None


def _part(kind: str, value: object) -> dict[str, Any]:
    if kind == "Split":
        return {"type": kind, "pattern": {"Regex": value}, "behavior": "Isolated", "invert": False}
    if kind == "Digits":
        return {"type": kind, "individual_digits": value}
    return {"type": kind, "add_prefix_space": False, "trim_offsets": True, "use_regex": value}
