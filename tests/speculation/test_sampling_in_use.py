"""Which parameters a text is sampled with, and where each comes from."""

from typing import Any

import pytest

from mxconv.errors import ModelError
from mxconv.speculation.selection import CHAT_DEFAULTS, GREEDY_DEFAULTS, OFF, GenerationConfig, SamplingInUse, Selection
from mxconv.text.distribution import Penalties, Sampling

FILE = "generation_config.json"
QWEN = GenerationConfig(do_sample=True, temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05)
GREEDY_FILE = GenerationConfig(do_sample=False, temperature=0.6, top_p=0.9)
SILENT = GenerationConfig()


def selection(asked: Any, recommended: GenerationConfig, defaults: Any = GREEDY_DEFAULTS) -> Selection:
    return SamplingInUse.of(asked, recommended, defaults).selection()


@pytest.mark.parametrize(
    ("asked", "recommended", "of_generate", "of_chat"),
    [
        ({}, SILENT, None, Sampling(0.7, 0, 0.95, 0.05)),
        ({}, GenerationConfig(stop_strings=("a",)), None, Sampling(0.7, 0, 0.95, 0.05)),
        ({}, QWEN, Sampling(0.6, 20, 0.95), Sampling(0.6, 20, 0.95)),
        ({}, GenerationConfig(do_sample=True), Sampling(1.0, 50), Sampling(1.0, 50)),
        ({}, GenerationConfig(temperature=0.9, top_p=0.6), Sampling(0.9, 50, 0.6), Sampling(0.9, 50, 0.6)),
        ({}, GREEDY_FILE, None, None),
        ({"temperature": 0}, QWEN, None, None),
        ({"temperature": 0}, SILENT, None, None),
        ({"temperature": 1.5}, SILENT, Sampling(1.5), Sampling(1.5)),
        ({"temperature": 1.5}, QWEN, Sampling(1.5, 20, 0.95), Sampling(1.5, 20, 0.95)),
        ({"temperature": 1.5}, GenerationConfig(do_sample=True), Sampling(1.5), Sampling(1.5)),
        ({"temperature": 1.5}, GREEDY_FILE, Sampling(1.5, 0, 0.9), Sampling(1.5, 0, 0.9)),
        ({"temperature": 1.5, "top_p": 1, "top_k": 0}, QWEN, Sampling(1.5, 0, 1), Sampling(1.5, 0, 1)),
        ({"top_p": 0.5}, SILENT, None, Sampling(0.7, 0, 0.5, 0.05)),
        ({"top_p": 0.5, "min_p": None}, QWEN, Sampling(0.6, 20, 0.5), Sampling(0.6, 20, 0.5)),
        ({"min_p": 0.2}, QWEN, Sampling(0.6, 20, 0.95, 0.2), Sampling(0.6, 20, 0.95, 0.2)),
    ],
    ids=str,
)
def test_a_request_wins_over_the_file_and_the_file_over_defaults(
    asked: Any, recommended: GenerationConfig, of_generate: Sampling | None, of_chat: Sampling | None
) -> None:
    assert selection(asked, recommended).sampling == of_generate
    assert selection(asked, recommended, CHAT_DEFAULTS).sampling == of_chat


def test_penalties_hold_for_greedy_decoding_too() -> None:
    assert selection({"temperature": 0}, QWEN).penalties == Penalties(1.05)
    asked = {"repetition_penalty": 1, "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {9: 2, 4: -1.5}}
    assert selection(asked, QWEN).penalties == Penalties(1, 1, -1, ((4, -1.5), (9, 2)))
    assert selection({}, SILENT).penalties.is_neutral


def test_it_names_what_was_used_and_why() -> None:
    used = SamplingInUse.of({"top_k": 5, "logit_bias": {3: 1}}, QWEN, CHAT_DEFAULTS)
    names = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"]
    origins = [FILE, "request", FILE, "default", FILE, "default", "default", "request"]
    assert used.members == {
        **dict(zip(names, [0.6, 5, 0.95, 0.0, 1.05, 0.0, 0.0], strict=True)),
        "logit_bias": {3: 1},
        "from": dict(zip([*names, "logit_bias"], origins, strict=True)),
    }
    assert used.is_from_file
    assert (
        used.summary
        == f"temperature 0.6, top_p 0.95, repetition_penalty 1.05 ({FILE}); top_k 5, logit_bias for 1 tokens (request)"
    )


def test_what_has_no_say_in_greedy_decoding_is_not_named() -> None:
    used = SamplingInUse.of({"temperature": 0, "top_p": 0.5}, GREEDY_FILE, GREEDY_DEFAULTS)
    assert used.members == {
        **dict.fromkeys(("temperature", "presence_penalty", "frequency_penalty"), 0.0),
        "repetition_penalty": 1.0,
        "from": {"temperature": "request"}
        | dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), "default"),
    }
    assert not used.is_from_file
    assert used.summary == "greedy (request)"
    assert SamplingInUse.of({}, GREEDY_FILE, CHAT_DEFAULTS).is_from_file


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"temperature": -1}, "temperature: -1; a finite number above 0"),
        ({"top_k": 2.5}, "top_k: 2.5; a whole number"),
        ({"min_p": 1.5}, "min_p: 1.5; a number from 0 to 1 is required, 0 for all tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty: 0; a number from 0.001 to 1000"),
        ({"logit_bias": {"3": 1}}, r"logit_bias: \{'3': 1\}; numbers by token id are required"),
        ({"logit_bias": [3]}, r"logit_bias: \[3\]; numbers by token id are required"),
    ],
)
def test_what_cannot_be_is_refused_at_once(asked: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        SamplingInUse.of(asked, SILENT, OFF)
