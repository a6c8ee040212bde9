"""What `--draft` may say, what it becomes, and every reason to refuse it."""

import pytest
from tiny_levels import record_of

from mxconv.drafts.kind import DraftSpec, Value
from mxconv.drafts.kinds import parse_draft
from mxconv.errors import MxconvError


def spec(
    kind: str, subject: str = "", length: int | None = None, confidence: float | None = None, **own: Value
) -> DraftSpec:
    return DraftSpec(kind, subject, length, confidence, own)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("checkpoint:a/b", spec("checkpoint", "a/b")),
        ("package:C:/x,num_draft_tokens=3,confidence=0.25", spec("package", "C:/x", 3, 0.25)),
        ("package:x,level=a=b", spec("package", "x", level="a=b")),
        (
            "streaming:sink=0,window=1,cache=own",
            spec("streaming", cache="own", sink=0, window=1),
        ),
        ("streaming,bits=4", spec("streaming", bits=4)),
        ("retrieval", spec("retrieval")),
        ("retrieval:pages=3,sink=0,window=64,bits=16", spec("retrieval", pages=3, sink=0, window=64, bits=16)),
        ("fewer-experts:2,cache=own", spec("fewer-experts", "2", cache="own")),
        ("prompt-lookup", spec("prompt-lookup")),
        (
            "prompt-lookup,max_ngram=5,num_draft_tokens=64",
            spec("prompt-lookup", "", 64, max_ngram=5),
        ),
        (
            "prompt-lookup:min_ngram=5,max_ngram=5",
            spec("prompt-lookup", max_ngram=5, min_ngram=5),
        ),
        ("ngram:some/table.safetensors,confidence=0", spec("ngram", "some/table.safetensors", confidence=0.0)),
        ("eagle3:a/b,num_draft_tokens=5", spec("eagle3", "a/b", 5)),
        ("gemma4-assistant:a/b", spec("gemma4-assistant", "a/b")),
        ("dflash:a/b,confidence=0.5", spec("dflash", "a/b", confidence=0.5)),
        ("mtp,bits=16,num_draft_tokens=2", spec("mtp", "", 2, bits=16)),
        ("speculator:a/b,num_candidates=4", spec("speculator", "a/b", num_candidates=4)),
        ("spire:a/b,num_draft_tokens=4", spec("spire", "a/b", 4)),
    ],
)
def test_a_specification_names_kind_subject_and_parameters(text: str, expected: DraftSpec) -> None:
    assert parse_draft(text) == expected


KNOWN = (
    "one of checkpoint:PATH_OR_ID, package:PATH_OR_ID, streaming, "
    "retrieval, fewer-experts:NUMBER, prompt-lookup, ngram:TABLE, "
    "speculator:PATH_OR_ID, medusa:PATH_OR_ID, "
    "spire:PATH_OR_ID, eagle3:PATH_OR_ID, dflash:PATH_OR_ID, "
    "gemma4-assistant:PATH_OR_ID, mtp, FILE.py:CLASS is required."
)
COMMON = "num_draft_tokens, confidence"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f"kind ''; {KNOWN}"),
        ("small", f"kind 'small'; {KNOWN}"),
        ("model:x", f"kind 'model'; {KNOWN}"),
        ("Package:x", f"kind 'Package'; {KNOWN}"),
        ("package:", "names no PATH_OR_ID; package:PATH_OR_ID is required."),
        ("checkpoint,confidence=1", "names no PATH_OR_ID; checkpoint:PATH_OR_ID is required."),
        ("ngram:,confidence=1", "names no TABLE; ngram:TABLE is required."),
        ("eagle3:x,num_candidates=2", f"parameter 'num_candidates'; one of {COMMON} is required."),
        ("mtp:bits=8", "bits is 8; 4 or 16 is required."),
        ("mtp:bits=few", "bits is 'few'; a number is required."),
        ("mtp:some/folder", f"parameter 'some/folder'; one of {COMMON}, bits is required."),
        ("package:x,depth=2", f"parameter 'depth'; one of {COMMON}, level is required."),
        ("package:x,", f"parameter ''; one of {COMMON}, level is required."),
        ("package:x,level=", "level has no name; that of a level of the package is required."),
        ("prompt-lookup:5", f"parameter '5'; one of {COMMON}, max_ngram, min_ngram is required."),
        ("streaming:cache=mine", "cache is 'mine'; shared or own is required."),
        ("package:x,num_draft_tokens=many", "num_draft_tokens is 'many'; a number is required."),
        ("package:x,confidence=", "confidence is ''; a number is required."),
        ("package:x,num_draft_tokens=0", "num_draft_tokens is 0; 1 to 64 is required."),
        ("package:x,num_draft_tokens=65", "num_draft_tokens is 65; 1 to 64 is required."),
        ("package:x,confidence=nan", "confidence is nan; 0 to 1 is required."),
        (
            "prompt-lookup:min_ngram=5,max_ngram=4",
            "min_ngram is 5 and max_ngram 4; min_ngram may be max_ngram at most. Give both.",
        ),
        (
            "prompt-lookup:min_ngram=5",
            "min_ngram is 5 and max_ngram 3; min_ngram may be max_ngram at most. Give both.",
        ),
        ("streaming:window=0", "window is 0; 1 to 2147483648 is required."),
        ("retrieval:window=63", "window is 63; 64 to 2147483648 is required."),
        ("retrieval:pages=0", "pages is 0; 1 to 33554432 is required."),
        ("retrieval,bits=8", "bits is 8; 4 or 16 is required."),
        ("fewer-experts:two", "'two' experts; a number from 0 to 99999 is required."),
        ("fewer-experts:-1", "'-1' experts; a number from 0 to 99999 is required."),
        ("streaming:sink=-1", "sink is -1; 0 to 2147483648 is required."),
    ],
)
def test_a_specification_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(MxconvError) as caught:
        parse_draft(text)
    assert str(caught.value) == f"--draft {text}: {message}"


def test_a_model_with_the_tokens_of_the_level_above_shares_them_and_another_is_trusted_less() -> None:
    same = record_of(parse_draft("checkpoint:x,num_draft_tokens=5"), "x", "f16", "drafts/1-x")
    assert (same.kind, same.codec, same.path, same.shares) == ("model", "f16", "drafts/1-x", ["tokenizer"])
    assert (same.num_draft_tokens, same.confidence) == (5, 0.4)
    other = record_of(parse_draft("package:x"), "x", "package", "drafts/1-x", same_tokenizer=False)
    assert (other.kind, other.shares, other.num_draft_tokens, other.confidence) == ("model", [], 8, 0.65)
    assert record_of(parse_draft("package:x,confidence=0"), "x", same_tokenizer=False).confidence == 0.0


@pytest.mark.parametrize(
    ("text", "members", "shares"),
    [
        ("streaming", {"sink": 4, "window": 252}, ["weights", "kv_cache", "tokenizer"]),
        ("streaming:sink=0,window=9,cache=own", {"sink": 0, "window": 9}, ["weights", "tokenizer"]),
        ("retrieval", {"sink": 4, "window": 256, "pages": 16}, ["weights", "kv_cache", "tokenizer"]),
        ("fewer-experts:0", {"experts": 0}, ["weights", "kv_cache", "tokenizer"]),
        ("prompt-lookup", {"max_ngram": 3, "min_ngram": 1}, ["tokenizer"]),
        ("prompt-lookup:max_ngram=7,min_ngram=7", {"max_ngram": 7, "min_ngram": 7}, ["tokenizer"]),
        ("ngram:t", {}, ["tokenizer"]),
        ("eagle3:p", {}, ["tokenizer"]),
        ("mtp", {}, ["weights", "tokenizer"]),
        ("speculator:s", {}, ["tokenizer"]),
        ("speculator:s,num_candidates=5", {"num_candidates": 5}, ["tokenizer"]),
        ("spire:s", {}, ["tokenizer"]),
    ],
)
def test_a_record_holds_what_its_kind_needs_and_nothing_else(
    text: str, members: dict[str, object], shares: list[str]
) -> None:
    found = record_of(parse_draft(text), "name").model_dump()
    assert found["shares"] == shares
    every = ("skipped", "skip", "sink", "window", "pages", "max_ngram", "min_ngram", "num_candidates", "experts")
    assert {key: found[key] for key in every if found.get(key) is not None} == members
    assert (found["name"], found["codec"], found["files"], found["path"]) == ("name", None, [], None)
