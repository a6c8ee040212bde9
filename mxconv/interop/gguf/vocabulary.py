"""A model's tokenizer as GGUF has it: tokens by id, their kinds, and either merges or scores.

llama.cpp runs two kinds of BPE. `gpt2` works on bytes and takes the merges as they are, with the name of the rule that
cuts text beforehand. `llama`, SentencePiece's, works on characters with bytes as fallback, and joins the two neighbours
whose union has the highest score; the rank of a token's first merge, negated, is such a score.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mxconv.checkpoint.gguf.pre_tokenizers import flattened, pre_tokenizer_name
from mxconv.checkpoint.gguf.token_types import SPACE, TokenType
from mxconv.checkpoint.json_file import parse_json_object, read_json_object
from mxconv.checkpoint.tokenizer_file import read_tokenizer_json
from mxconv.errors import ModelError
from mxconv.model.tokenizer import Tokenizer

NO_MERGE_SCORE = -1e6  # below every rank: of tokens that no merge makes


@dataclass(frozen=True)
class Vocabulary:
    """What the keys `tokenizer.ggml.*` say."""

    model: Literal["gpt2", "llama"]
    pre_tokenizer: str
    tokens: list[str]
    types: list[int]
    merges: list[str] | None  # of gpt2
    scores: list[float] | None  # of llama
    unknown_id: int | None
    bos_id: int | None
    eos_id: int | None
    further_eos_ids: tuple[int, ...]
    adds_bos: bool
    adds_eos: bool
    adds_space_prefix: bool
    has_bytes: bool  # whether every text has tokens


def read_vocabulary(folder: Path, num_rows: int) -> Vocabulary:
    """Read tokenizer.json and the ids of special tokens.

    Args:
        folder: of a package.
        num_rows: of the embedding; ids without a token are filled up.

    Raises:
        MxconvError: the tokenizer is missing, malformed, or of a kind that llama.cpp does not have.
    """
    tokenizer = Tokenizer.from_folder(folder)
    path = folder / "tokenizer.json"
    members = parse_json_object(read_tokenizer_json(folder) or b"", str(path), unique_keys=False)
    model = members["model"]
    if model.get("type") != "BPE":
        raise ModelError(
            f"{path}: a {model.get('type')} tokenizer; GGUF files of these architectures hold BPE. "
            "Export with --to safetensors, and convert it where that tokenizer is known."
        )
    merges = [_merge(merge) for merge in model["merges"]]
    kind, pre_tokenizer = _kind(members, path)
    if kind == "gpt2" and not merges:
        raise ModelError(
            f"{path}: a BPE tokenizer without merges; llama.cpp loads no vocabulary without one. Export with --to "
            "safetensors."
        )
    tokens, types = _tokens(members, num_rows, path)
    adds_bos, adds_eos, bos_id, eos_id = _added_by_template(tokenizer)
    eos_ids = _eos_ids(folder, tokenizer, eos_id)
    unknown = model.get("unk_token")
    return Vocabulary(
        model=kind,
        pre_tokenizer=pre_tokenizer,
        tokens=tokens,
        types=types,
        merges=[" ".join(merge) for merge in merges] if kind == "gpt2" else None,
        scores=_scores(tokens, merges) if kind == "llama" else None,
        unknown_id=tokens.index(unknown) if unknown in tokens else None,
        bos_id=bos_id if bos_id is not None else tokenizer.bos_token_id,
        eos_id=eos_ids[0] if eos_ids else None,
        further_eos_ids=eos_ids[1:],
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        adds_space_prefix=kind == "llama" and _prepends_space(members),
        has_bytes=kind == "gpt2" or TokenType.BYTE in types,
    )


def _kind(members: dict[str, Any], path: Path) -> tuple[Literal["gpt2", "llama"], str]:
    steps = flattened(members.get("pre_tokenizer"), "pretokenizers")
    if any(step.get("type") == "ByteLevel" for step in steps):
        name = pre_tokenizer_name(members.get("pre_tokenizer"))
        if name is None:
            raise ModelError(
                f"{path}: its pre_tokenizer is {str(members['pre_tokenizer'])[:200]}; one whose name in llama.cpp "
                "mxconv knows is required. Export with --to safetensors and use llama.cpp's own converter."
            )
        return "gpt2", name
    if _escapes_spaces(members):
        return "llama", "default"
    raise ModelError(
        f"{path}: a BPE tokenizer that neither works on bytes (ByteLevel) nor writes spaces as {SPACE}; GGUF has these "
        "two kinds. Export with --to safetensors."
    )


def _escapes_spaces(members: dict[str, Any]) -> bool:
    steps = flattened(members.get("pre_tokenizer"), "pretokenizers")
    normalizers = flattened(members.get("normalizer"), "normalizers")
    replaces = any(part.get("type") == "Replace" and part.get("content") == SPACE for part in normalizers)
    return replaces or any(step.get("type") == "Metaspace" for step in steps)


def _prepends_space(members: dict[str, Any]) -> bool:
    steps = flattened(members.get("pre_tokenizer"), "pretokenizers")
    normalizers = flattened(members.get("normalizer"), "normalizers")
    if any(part.get("type") == "Prepend" and part.get("prepend") == SPACE for part in normalizers):
        return True
    return any(step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never" for step in steps)


def _merge(merge: Any) -> tuple[str, str]:
    """A pair: the newer files list two strings, the older ones write them with a space between."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right


def _tokens(members: dict[str, Any], num_rows: int, path: Path) -> tuple[list[str], list[int]]:
    """Texts and types by id."""
    model = members["model"]
    found = {token_id: (text, TokenType.NORMAL) for text, token_id in model["vocab"].items()}
    if model.get("byte_fallback"):
        for byte in range(256):
            text = f"<0x{byte:02X}>"
            if text in model["vocab"]:
                found[model["vocab"][text]] = text, TokenType.BYTE
    for added in members.get("added_tokens", []):
        found[added["id"]] = added["content"], TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    if (unknown := model.get("unk_token")) in model["vocab"]:
        found[model["vocab"][unknown]] = unknown, TokenType.UNKNOWN
    if max(found) >= num_rows:
        raise ModelError(
            f"{path}: token {found[max(found)][0]!r} has id {max(found)}; the embedding has {num_rows} rows, and "
            "llama.cpp requires as many tokens. Take the tokenizer that belongs to the weights."
        )
    filled = [found.get(token_id, (f"[PAD{token_id}]", TokenType.UNUSED)) for token_id in range(num_rows)]
    return [text for text, _ in filled], [int(kind) for _, kind in filled]


def _scores(tokens: list[str], merges: list[tuple[str, str]]) -> list[float]:
    ranks: dict[str, float] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, -float(rank))
    return [ranks.get(text, NO_MERGE_SCORE) for text in tokens]


def _added_by_template(tokenizer: Tokenizer) -> tuple[bool, bool, int | None, int | None]:
    """What the post-processor puts before and behind a text: whether, and which tokens."""
    plain, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
    for before, behind in ((0, 0), (1, 0), (0, 1), (1, 1)):
        if whole[before : len(whole) - behind] == plain and len(whole) == len(plain) + before + behind:
            return bool(before), bool(behind), whole[0] if before else None, whole[-1] if behind else None
    raise ModelError(
        f"{tokenizer.name}: it puts {len(whole) - len(plain)} special tokens around a text; GGUF has at most one "
        "before and one behind it. Export with --to safetensors."
    )


def _eos_ids(folder: Path, tokenizer: Tokenizer, appended: int | None) -> tuple[int, ...]:
    """Tokens that end a text, the one that tokenizer_config.json names first."""
    stops = sorted(tokenizer.eos_token_ids)
    path = folder / "tokenizer_config.json"
    named = read_json_object(path, unique_keys=False).get("eos_token") if path.is_file() else None
    text = named.get("content") if isinstance(named, dict) else named
    if isinstance(text, str):
        ids = tokenizer.encode(text, add_special_tokens=False)
        stops.sort(key=lambda token_id: [token_id] != ids)
    if appended is not None:
        stops = [appended, *(token_id for token_id in stops if token_id != appended)]
    return tuple(stops)
