"""`generate` with drafts against `generate` without: transformers is the oracle of every token."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hub_server import HubServer
from packages import quantize
from transformers import AutoModelForSeq2SeqLM, T5Config
from transformers.generation import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from mxconv.errors import ModelError
from mxconv.interop.transformers import Drafts, drafts, torch_target
from mxconv.package.ngram_table import write_ngram_table
from mxconv.train.ngram_trainer import train_ngram

EXAMPLES = Path(__file__).parents[3] / "examples"
TARGET = EXAMPLES / "models" / "pylib-1.5m"

ROUNDING = 1e-4  # float32 logits near 10 that are summed in another order lie closer than this


@pytest.fixture(scope="module")
def three(three_levels: Path) -> Any:
    with drafts(three_levels) as found:
        yield found


def assert_same(
    model: Any, custom_generate: Drafts, ids: torch.Tensor, max_new_tokens: int = 40, **options: Any
) -> torch.Tensor:
    """Both ways; drafts must have proposed something."""
    found = model.generate(ids, custom_generate=custom_generate, max_new_tokens=max_new_tokens, **options)
    expected = model.generate(ids, max_new_tokens=max_new_tokens, **options)
    assert torch.equal(found, expected)
    assert custom_generate.last is not None
    assert custom_generate.last.num_tokens == found.shape[1] - ids.shape[1]
    return found


def test_every_token_is_that_of_generate_alone(pylib: Any, three: Drafts, prompts: list[torch.Tensor]) -> None:
    num_rounds = num_tokens = 0
    for ids in prompts[:10]:
        assert_same(pylib, three, ids, max_new_tokens=24)
        run = three.last
        assert run is not None and run.closest is not None
        assert run.closest.margin > ROUNDING  # so that equality is no luck of this machine
        first, second = run.levels
        assert (first.name, second.name) == ("bsfp", "pylib-0.2m")
        assert first.num_proposed >= first.num_accepted > 0
        assert second.num_proposed >= second.num_accepted
        assert first.num_accepted + run.num_rounds == run.num_tokens
        num_rounds += run.num_rounds
        num_tokens += run.num_tokens
    assert num_rounds < 0.6 * num_tokens


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama"},
        {"model_type": "mistral", "sliding_window": 6},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 16},
    ],
    ids=lambda changes: changes["model_type"],
)
def test_every_architecture_rolls_its_cache_back(
    changes: dict[str, Any], random_model: Callable[..., tuple[Any, Path]]
) -> None:
    model, package = random_model(**changes)
    with drafts(package) as custom_generate:
        assert_same(model, custom_generate, torch.arange(5, 25)[None], eos_token_id=None)
        run = custom_generate.last
        assert run is not None and run.levels[0].num_proposed > run.levels[0].num_accepted > 0  # some were rejected


def test_look_ups_draft_too_in_chains_whatever_the_tree_and_the_pace_may_be_left_to_them(
    pylib: Any, tmp_path: Path, prompts: list[torch.Tensor]
) -> None:
    quantize(TARGET, tmp_path / "package", drafts=("prompt-lookup,confidence=0",))
    ids = torch.cat((prompts[0], prompts[0]), dim=-1)  # something to look up
    for levels, lengths in ((["prompt-lookup"], None), (["prompt-lookup"], "auto"), (None, "auto")):
        with drafts(tmp_path / "package", levels, num_draft_tokens=lengths, tree=12) as custom_generate:  # type: ignore[arg-type]
            assert_same(pylib, custom_generate, ids)
            assert custom_generate.last is not None
            if levels is not None:
                (level,) = custom_generate.last.levels
                assert level.num_nodes == level.num_proposed >= level.num_accepted > 0
    with drafts(tmp_path / "package", num_draft_tokens=[1], confidence=[0.0]) as custom_generate:
        assert_same(pylib, custom_generate, ids)
        run = custom_generate.last
        assert run is not None and len(run.levels[0].proposed_by_position) == 1  # never two at once


def test_look_ups_propose_trees_to_drafts_and_torch_is_told_chains(
    pylib: Any, prompts: list[torch.Tensor], tmp_path: Path
) -> None:
    table = tmp_path / "table.safetensors"
    write_ngram_table(train_ngram([Path(__file__)], TARGET), table)
    quantize(TARGET, tmp_path / "package", codec="bsfp", drafts=(f"ngram:{table},confidence=0",))
    nodes = {}
    for tree in ("chain", 12):
        with drafts(tmp_path / "package", tree=tree) as custom_generate:  # type: ignore[arg-type]
            assert_same(pylib, custom_generate, prompts[0])
            assert custom_generate.last is not None
            first, second = custom_generate.last.levels
            assert first.num_nodes == first.num_proposed > 0
            nodes[tree] = second.num_nodes, second.num_proposed
    assert nodes["chain"][0] == nodes["chain"][1]
    assert nodes[12][0] > nodes[12][1]


def test_logits_processors_choose_as_without_drafts(pylib: Any, three: Drafts, prompts: list[torch.Tensor]) -> None:
    options = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 20}
    changed = assert_same(pylib, three, prompts[0], **options)
    assert not torch.equal(changed, pylib.generate(prompts[0], max_new_tokens=40))


def test_a_stop_token_ends_the_text_where_it_would_without_drafts(
    pylib: Any, three: Drafts, prompts: list[torch.Tensor]
) -> None:
    plain = pylib.generate(prompts[1], max_new_tokens=40)[0, prompts[1].shape[1] :].tolist()
    for place in range(3, 12):
        found = assert_same(pylib, three, prompts[1], eos_token_id=plain[place])
        assert found[0, -1] == plain[place]


class Longer(StoppingCriteria):  # type: ignore[misc]
    """Stops at some length, and notes every length at which it was asked."""

    def __init__(self, length: int) -> None:
        self.length, self.seen = length, []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


def test_a_stopping_criterion_is_asked_after_every_token(
    pylib: Any, three: Drafts, prompts: list[torch.Tensor]
) -> None:
    length = prompts[2].shape[1]
    criterion = Longer(length + 7)
    out = pylib.generate(
        prompts[2], max_new_tokens=40, custom_generate=three, stopping_criteria=StoppingCriteriaList([criterion])
    )
    assert out.shape[1] == length + 7
    assert criterion.seen == list(range(length + 1, length + 8))


def test_sampling_draws_the_same_tokens_from_the_same_seed(
    pylib: Any, three: Drafts, prompts: list[torch.Tensor]
) -> None:
    options = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.95, "max_new_tokens": 40}
    texts = set()
    for seed in range(3):
        torch.manual_seed(seed)
        found = pylib.generate(prompts[3], custom_generate=three, **options)
        after = torch.rand(1)
        torch.manual_seed(seed)
        assert torch.equal(found, pylib.generate(prompts[3], **options))
        assert torch.equal(after, torch.rand(1))  # not one random number more or less
        texts.add(tuple(found[0].tolist()))
    assert len(texts) > 1
    assert three.last is not None and three.last.levels[0].num_accepted > 0 and three.last.choices == []


def cache_of(output: Any) -> str:
    """What this version of transformers calls the KV cache."""
    (name,) = {"cache", "past_key_values"} & set(output)
    return name


def test_a_dictionary_holds_scores_logits_and_a_cache_to_go_on_from(
    pylib: Any, three: Drafts, prompts: list[torch.Tensor]
) -> None:
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, "max_new_tokens": 12}
    found = pylib.generate(prompts[4], custom_generate=three, repetition_penalty=1.1, **options)
    expected = pylib.generate(prompts[4], repetition_penalty=1.1, **options)
    assert torch.equal(found.sequences, expected.sequences)
    for name in ("scores", "logits"):
        assert len(found[name]) == len(expected[name]) == 12
        difference = (torch.stack(found[name]) - torch.stack(expected[name])).abs().max()
        assert difference < ROUNDING
    assert not torch.equal(found.scores[3], found.logits[3])
    name = cache_of(expected)
    assert found[name].get_seq_length() == expected[name].get_seq_length()
    more = [
        pylib.generate(out.sequences, max_new_tokens=10, **{name: out[name]}, **extra)
        for out, extra in ((found, {"custom_generate": three}), (expected, {}))
    ]
    assert torch.equal(*more)


class Collected(BaseStreamer):  # type: ignore[misc]
    """The tokens that it was told, and -1 for the end."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.tokens.append(-1)


def test_a_streamer_gets_every_token_and_a_check_says_nothing_of_what_is_the_same(
    pylib: Any, three_levels: Path, prompts: list[torch.Tensor]
) -> None:
    streamer = Collected()
    with drafts(three_levels, ["bsfp"], streamer=streamer, check=True) as custom_generate:
        found = assert_same(pylib, custom_generate, prompts[6], max_new_tokens=20)
        assert custom_generate.last is not None and custom_generate.last.difference is None
        assert [level.name for level in custom_generate.last.levels] == ["bsfp"]
        refused(pylib, custom_generate, "check=True with do_sample=True; only greedy", prompts[0], do_sample=True)
    assert streamer.tokens[: found.shape[1] + 1] == [*found[0].tolist(), -1]


def test_padding_is_hidden_from_the_drafts(pylib: Any, three: Drafts, prompts: list[torch.Tensor]) -> None:
    padded = torch.cat((torch.zeros(1, 5, dtype=torch.long), prompts[5]), dim=-1)
    mask = torch.ones_like(padded)
    mask[:, :5] = 0
    found = assert_same(pylib, three, padded, attention_mask=mask)
    plain = pylib.generate(prompts[5], max_new_tokens=40)
    assert torch.equal(found[:, 5:], plain)
    assert three.last is not None and three.last.levels[0].num_accepted > 10


def test_a_model_that_depends_on_the_width_is_told_which_token_and_by_how_much(
    random_model: Callable[..., tuple[Any, Path]],
) -> None:
    """The real thing that happens in BF16, made certain: several tokens at once give token 9 a little more."""
    model, package = random_model(model_type="llama")

    def favour(module: torch.nn.Module, inputs: Any, logits: torch.Tensor) -> torch.Tensor:
        if logits.shape[1] > 1:
            logits[..., 9] = logits.amax(dim=-1) + 0.25
        return logits

    hook = model.lm_head.register_forward_hook(favour)
    try:
        with drafts(package, check=True) as custom_generate:
            message = r"new token (\d+) is 9 with drafts \(margin 0.25 over \d+\) and \d+ without \(margin"
            with pytest.warns(RuntimeWarning, match=message):
                model.generate(torch.arange(5, 25)[None], custom_generate=custom_generate, max_new_tokens=20)
            run = custom_generate.last
    finally:
        hook.remove()
    assert run is not None and run.difference is not None
    assert run.difference.with_drafts.margin == pytest.approx(0.25)
    assert run.difference.without_drafts.token != 9
    assert run.closest is not None and run.closest.margin <= 0.25


def refused(model: Any, custom_generate: Drafts, message: str, *inputs: Any, **options: Any) -> None:
    with pytest.raises(ModelError, match=message):
        model.generate(*inputs, custom_generate=custom_generate, max_new_tokens=5, **options)


def test_what_drafts_cannot_serve_is_refused(pylib: Any, three: Drafts, prompts: list[torch.Tensor]) -> None:
    ids = prompts[0]
    refused(pylib, three, r"a batch of 2 sequences .*; drafts serve one at a time", ids.repeat(2, 1))
    refused(pylib, three, r"num_beams=3; drafts serve greedy decoding and sampling", ids, num_beams=3)
    refused(pylib, three, r"none as the KV cache; a DynamicCache is required", ids, use_cache=False)
    refused(pylib, three, r"StaticCache as the KV cache; a DynamicCache", ids, cache_implementation="static")
    options = {"return_dict_in_generate": True, "output_attentions": True}
    refused(pylib, three, "output_attentions=True; drafts do not collect these", ids, **options)
    embeds = pylib.get_input_embeddings()(ids)
    refused(pylib, three, "arguments inputs_embeds for the model; drafts read text alone", inputs_embeds=embeds)
    before = pylib.generate(ids, max_new_tokens=5, return_dict_in_generate=True)
    name, mask = cache_of(before), torch.ones(1, ids.shape[1] + 5)
    message = rf"{name} with \d+ positions and 1 input_ids; the ids of the whole text are required"
    refused(pylib, three, message, ids[:, :1], attention_mask=mask, **{name: before[name]})


def test_other_models_are_refused(
    three: Drafts, random_model: Callable[..., tuple[Any, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sliding windows as in transformers 5.0, whose caches forget what has left one, and 5.17, whose masks do."""
    ids = torch.ones(1, 3).long()
    model, package = random_model(model_type="mistral", sliding_window=6)
    refused(model, three, r"drafts with a vocabulary of 1024 tokens; the model's 96 are required", ids)
    monkeypatch.setattr(torch_target, "caches_record_their_past", lambda: False)
    with drafts(package) as custom_generate:
        refused(model, custom_generate, r"sliding windows in transformers \d+\.\d+.*; 5\.23 or later", ids)
    config = T5Config(vocab_size=1024, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    refused(AutoModelForSeq2SeqLM.from_config(config), three, "an encoder-decoder; drafts need a decoder-only mo", ids)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"levels": ["target"]},
            "package: drafts target; at least one of bsfp, pylib-0.2m is required, and the targ",
        ),
        ({"levels": []}, "drafts none; at least one of bsfp"),
        ({"num_draft_tokens": [1, 2, 3]}, "3 numbers for 2 draft levels; one for all, or one each, is required"),
    ],
)
def test_an_unknown_draft_is_named(three_levels: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        drafts(three_levels, **options)


def test_the_example_decodes_with_two_drafts(three_levels: Path, tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "transformers_generate.py", EXAMPLES / "models" / "pylib-1.5m", "org/drafts"]
    with HubServer({"org/drafts": {"main": three_levels}}) as hub:
        done = subprocess.run(
            [*map(str, command), "def main("],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=hub.environment(tmp_path / "cache"),
        )
    assert done.returncode == 0, done.stderr
    *_, rounds, first, second, verdict = done.stdout.splitlines()
    found = re.fullmatch(r"(\d+) tokens in (\d+) passes of .*pylib-1\.5m", rounds)
    assert found is not None and int(found[2]) < int(found[1]) == 64
    assert re.fullmatch(r"bsfp: \d+ of \d+ proposed tokens accepted", first)
    assert re.fullmatch(r"pylib-0\.2m: \d+ of \d+ proposed tokens accepted", second)
    assert verdict == "the same text as without drafts"
