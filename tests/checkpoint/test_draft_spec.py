"""What `--draft` says, and every way in which it cannot."""

import pytest

from mxconv.checkpoint.draft_spec import OF_KIND, DraftSpec, parse_draft
from mxconv.errors import MxconvError


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("checkpoint:a/b", DraftSpec("checkpoint", "a/b")),
        ("package:C:/x,num_draft_tokens=3,confidence=0.25", DraftSpec("package", "C:/x", 3, 0.25)),
        ("prompt-lookup", DraftSpec("prompt-lookup")),
        ("prompt-lookup:max_ngram=5", DraftSpec("prompt-lookup", max_ngram=5)),
        ("prompt-lookup,num_draft_tokens=4", DraftSpec("prompt-lookup", num_draft_tokens=4)),
        ("ngram:t.bin,confidence=0", DraftSpec("ngram", "t.bin", confidence=0.0)),
        ("layer-skip:a3-5+m7+8,cache=own", DraftSpec("layer-skip", "a3-5+m7+8", cache="own")),
        ("streaming:sink=0,window=16", DraftSpec("streaming", sink=0, window=16)),
        ("token-recycling:num_candidates=2", DraftSpec("token-recycling", num_candidates=2)),
    ],
)
def test_a_specification_names_kind_subject_and_parameters(text: str, spec: DraftSpec) -> None:
    assert parse_draft(text) == spec


KINDS = (
    "checkpoint:PATH_OR_ID, package:PATH_OR_ID, layer-skip:LAYERS, streaming, prompt-lookup, ngram:TABLE, "
    "token-recycling"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("small", f"kind 'small'; one of {KINDS} is required."),
        ("model:x", f"kind 'model'; one of {KINDS} is required."),
        ("", f"kind ''; one of {KINDS} is required."),
        ("package:", "names no PATH_OR_ID; package:PATH_OR_ID is required."),
        ("package,confidence=1", "names no PATH_OR_ID; package:PATH_OR_ID is required."),
        ("layer-skip", "names no LAYERS; layer-skip:LAYERS is required."),
        ("package:x,depth=2", "parameter 'depth'; one of num_draft_tokens, confidence is required."),
        ("package:x,kind=2", "parameter 'kind'; one of num_draft_tokens, confidence is required."),
        ("prompt-lookup:3", "parameter '3'; one of num_draft_tokens, confidence, max_ngram is required."),
        ("package:x,num_draft_tokens=many", "num_draft_tokens is 'many'; a number is required."),
        ("package:x,confidence=", "confidence is ''; a number is required."),
        ("package:x,num_draft_tokens=0", "num_draft_tokens is 0; 1 to 64 is required."),
        ("package:x,num_draft_tokens=65", "num_draft_tokens is 65; 1 to 64 is required."),
        ("package:x,confidence=nan", "confidence is nan; 0 to 1 is required."),
        ("streaming:window=0", "window is 0; 1 to 2147483648 is required."),
        ("streaming:cache=mine", "cache is 'mine'; shared or own is required."),
    ],
)
def test_a_specification_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(MxconvError) as caught:
        parse_draft(text)
    assert str(caught.value) == f"--draft {text}: {message}"


def test_records_state_every_parameter_that_their_kind_has() -> None:
    subjects = {"layer-skip": "a1"}
    for kind, (subject, _) in OF_KIND.items():
        record = DraftSpec(kind, subjects.get(kind, subject)).record("name")  # type: ignore[arg-type]
        stated = {key for key in ("skipped", "sink", "window", "max_ngram", "num_candidates") if getattr(record, key)}
        expected = {
            "layer-skip": {"skipped"},
            "streaming": {"sink", "window"},
            "prompt-lookup": {"max_ngram"},
            "token-recycling": {"num_candidates"},
        }
        assert stated == expected.get(kind, set())
        assert record.kind == ("model" if kind in ("checkpoint", "package") else kind)


def test_a_variant_shares_weights_and_the_cache_unless_told_otherwise() -> None:
    assert parse_draft("layer-skip:1").record("x").shares == ["weights", "kv_cache", "tokenizer"]
    assert parse_draft("layer-skip:1,cache=own").record("x").shares == ["weights", "tokenizer"]
