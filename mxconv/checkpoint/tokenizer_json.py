"""Parts of a tokenizer.json that vocabularies of other kinds share: kinds of tokens, BPE, merges, templates, and how
text is cut before byte-level BPE, for which llama.cpp has names.

Source:
    the tokenizer.json files of the models named; `llm_tokenizer_bpe` in llama.cpp's llama-vocab.cpp. A test compares
    the tokens of both for every name.
"""

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxconv.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "▁"
NO_MERGE_SCORE = -1e6  # below every rank: of tokens that no merge makes


class TokenType(IntEnum):
    """As llama.cpp numbers them (`llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def merges_by_score(ids: Mapping[str, int], scores: Sequence[float]) -> list[list[str]]:
    """Every split of a token into two, best score first; of equal scores the lower id, of one token the shorter left.

    Args:
        ids: of the tokens that merging may make, and that it starts from.
        scores: by id.

    Source:
        `generate_merges` of transformers 5.23, which takes ids for ranks; there too the shorter left part comes first.
    """
    found = []
    for text, token_id in ids.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in ids and right in ids:
                found.append((-scores[token_id], token_id, cut, [left, right]))
    return [pair for *_, pair in sorted(found)]


def bpe_model(vocab: Mapping[str, int], merges: list[list[str]], **changes: Any) -> dict[str, Any]:
    """The member `model`: BPE, with `changes` to the members that it has by default."""
    defaults = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return defaults | changes | {"vocab": vocab, "merges": merges}


def spaced_decoder(strips_prefix: bool) -> dict[str, Any]:
    """The member `decoder` of a vocabulary that writes a space as `SPACE`, and bytes without tokens one by one."""
    back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strips_prefix else []
    return {"type": "Sequence", "decoders": [back, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip]}


def template(around: list[str | None], ids: Mapping[str, int]) -> dict[str, Any] | None:
    """The member `post_processor` that puts tokens around each text; None where it puts none.

    Args:
        around: the token before a text, and the one after it; None is none.
        ids: of these tokens.
    """
    texts = [text for text in around if text is not None]
    if not texts:
        return None
    before, after = ([{"SpecialToken": {"id": text, "type_id": 0}}] if text is not None else [] for text in around)
    single = [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after]
    second = [*before, {"Sequence": {"id": "B", "type_id": 0}}, *after]
    used = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in texts}
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, *second], "special_tokens": used}


def check_tokenizer(members: dict[str, Any], path: Path, remedy: str) -> "Tokenizer":
    """Have the library that will read a tokenizer.json read it. Raises CheckpointError where it refuses."""
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(members))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{path}: its vocabulary makes no tokenizer ({error}); one is required. {remedy}"
        ) from error


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN_2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_QWEN_3_5 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT_4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK_3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Step = tuple[str, object]

_CUT_BY_LLAMA_3: tuple[Step, ...] = (("Split", _LLAMA_3), ("ByteLevel", False))
_CUT_BY_DEEPSEEK_3: tuple[Step, ...] = (
    ("Split", r"\p{N}{1,3}"),
    ("Split", "[一-龥぀-ゟ゠-ヿ]+"),
    ("Split", _DEEPSEEK_3),
    ("ByteLevel", False),
)
_DIGIT_BY_DIGIT: tuple[Step, ...] = (("Digits", True), ("ByteLevel", True))

# Each step as _step gives it. The first name of equal ways is the one that is written.
PRE_TOKENIZERS: dict[str, tuple[Step, ...]] = {
    "gpt-2": (("ByteLevel", True),),
    "smollm": _DIGIT_BY_DIGIT,
    "starcoder": _DIGIT_BY_DIGIT,
    "refact": _DIGIT_BY_DIGIT,
    "command-r": _DIGIT_BY_DIGIT,
    "llama-bpe": _CUT_BY_LLAMA_3,
    "lfm2": _CUT_BY_LLAMA_3,
    "dbrx": _CUT_BY_LLAMA_3,
    "glm4": _CUT_BY_LLAMA_3,
    "chatglm-bpe": _CUT_BY_LLAMA_3,
    "qwen2": (("Split", _QWEN_2), ("ByteLevel", False)),
    "deepseek-r1-qwen": (("Split", _QWEN_2), ("ByteLevel", False)),
    "qwen35": (("Split", _QWEN_3_5), ("ByteLevel", False)),
    "tekken": (("Split", _TEKKEN), ("ByteLevel", False)),
    "gpt-4o": (("Split", _GPT_4O), ("ByteLevel", False)),
    "llama4": (("Split", _GPT_4O), ("ByteLevel", False)),
    "seed-coder": (("Split", _SEED), ("ByteLevel", False)),
    "deepseek-v3": _CUT_BY_DEEPSEEK_3,
    "hunyuan-dense": _CUT_BY_DEEPSEEK_3,
}
IGNORE_MERGES = frozenset({"llama-bpe", "lfm2", "tekken"})  # a word that is a token is one, whatever the merges say
# llama.cpp tells capitals from small letters there in ASCII alone, and takes no combining marks into words
CASE_OF_ASCII = frozenset({"tekken", "gpt-4o", "llama4"})


def pre_tokenizer_name(pre_tokenizer: dict[str, Any] | None, ignores_merges: bool) -> str | None:
    """llama.cpp's name of the member `pre_tokenizer` of a tokenizer.json; None where this table has none.

    Of two names for the same cut, whether the model ignores merges chooses one.
    """
    steps = tuple(_step(part) for part in flattened(pre_tokenizer, "pretokenizers"))
    names = [name for name, known in PRE_TOKENIZERS.items() if known == steps]
    return min(names, key=lambda name: (name in IGNORE_MERGES) != ignores_merges, default=None)


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
