"""Passes as replays of recorded ones, against `generate` itself. Graphs are simulated (tests/simulated_graphs.py)."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_graphs import SimulatedCall
from transformers.generation.streamers import BaseStreamer

from mxconv.errors import ModelError
from mxconv.interop.transformers import graphed
from mxconv.interop.transformers.decoding import Decoding
from mxconv.interop.transformers.graphs import passes, recordable, recorded_pass
from mxconv.interop.transformers.graphs.graphed import Graphed

ROUNDING = 1e-4  # as in test_drafts.py
PROMPT = torch.arange(5, 12)[None]


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordable, "DEVICE_TYPES", ("cpu",))
    monkeypatch.setattr(recorded_pass, "RecordedCall", SimulatedCall)
    monkeypatch.setattr(SimulatedCall, "made", 0)


@pytest.fixture
def tiny(random_model: Callable[..., tuple[Any, Path]]) -> Callable[..., Any]:
    def make(**changes: Any) -> Any:
        model, _ = random_model(**({"model_type": "llama"} | changes))
        model.generation_config.max_length = None
        model.generation_config.eos_token_id = None
        return model

    return make


def both(model: Any, own: Graphed, ids: torch.Tensor = PROMPT, num_tokens: int = 20, **options: Any) -> Any:
    """`generate` with and without graphs, whose tokens are the same; the output of the first."""
    options = {"max_new_tokens": num_tokens, "do_sample": False, "return_dict_in_generate": True,
               "output_logits": True} | options  # fmt: skip
    torch.manual_seed(3)
    found = model.generate(ids, custom_generate=own, **options)
    torch.manual_seed(3)
    expected = model.generate(ids, **options)
    assert torch.equal(found.sequences, expected.sequences)
    difference = (torch.stack(found.logits) - torch.stack(expected.logits)).abs().max()
    assert difference < ROUNDING
    return found


def replays(own: Graphed) -> int:
    assert own.last is not None
    return own.last.num_replays


@pytest.mark.parametrize(
    "changes",
    [
        {"model_type": "llama"},
        {"model_type": "qwen2"},
        {"model_type": "qwen3", "head_dim": 16},
        {"model_type": "olmo2"},
        {"model_type": "phi3", "pad_token_id": 0},
    ],
    ids=lambda changes: changes["model_type"],
)
def test_every_pass_behind_the_prompt_is_a_replay(tiny: Callable[..., Any], changes: dict[str, Any]) -> None:
    model = tiny(**changes)
    with graphed() as own:
        both(model, own)
        assert replays(own) == 19
        assert SimulatedCall.made == 1  # of one token, over 256 places


def test_what_was_recorded_serves_the_next_text(tiny: Callable[..., Any]) -> None:
    model = tiny()
    with graphed() as own:
        for ids in (PROMPT, PROMPT.flip(1), torch.arange(3, 60)[None]):
            both(model, own, ids)
            both(model, own, ids, do_sample=True, temperature=0.9)
        assert SimulatedCall.made == 1


def test_a_text_that_grows_sees_spans_that_grow(tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    monkeypatch.setattr(passes, "LEAST_SPAN", 8)
    with graphed() as own:
        both(model, own, num_tokens=45)
        assert SimulatedCall.made == 4  # 8, 16, 32, 64
        both(model, own, num_tokens=70)  # another slab, for a longer text: all anew
        assert SimulatedCall.made == 4 + 5


def test_a_text_that_outgrows_its_slab_gets_one_of_twice_its_length(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory follows the text and not `max_new_tokens`."""
    model = tiny()
    monkeypatch.setattr(passes, "LEAST_SPAN", 8)
    monkeypatch.setattr(passes, "FIRST_POSITIONS", 16)
    with graphed() as own:
        both(model, own, num_tokens=150)
        # 32 places, then 64 and 136, and what the text may come to; one pass each is launched when they are full
        assert replays(own) == 149 - 3
        assert own._passes._slab is not None
        assert own._passes._slab.capacity == 176


def test_padding_on_the_left_is_hidden_and_shifts_positions(tiny: Callable[..., Any]) -> None:
    model = tiny()
    padded = torch.nn.functional.pad(PROMPT, (5, 0))
    mask = (torch.arange(padded.shape[1]) >= 5).long()[None]
    with graphed() as own:
        found = both(model, own, padded, attention_mask=mask)
        alone = both(model, own)
        assert torch.equal(found.sequences[:, 5:], alone.sequences)


def test_a_text_goes_on_from_the_cache_of_another(tiny: Callable[..., Any]) -> None:
    model = tiny()
    with graphed() as own:
        first = both(model, own)
        name = "cache" if "cache" in first else "past_key_values"
        kept = copy.deepcopy(first[name])
        both(model, own, PROMPT.flip(1))  # comes to where the first one was
        for layer, before in zip(first[name].layers, kept.layers, strict=True):
            assert torch.equal(layer.keys, before.keys)
            assert torch.equal(layer.values, before.values)
        again = model.generate(
            first.sequences, custom_generate=own, max_new_tokens=9, do_sample=False, **{name: first[name]}
        )
        expected = model.generate(PROMPT, max_new_tokens=29, do_sample=False)
        assert torch.equal(again, expected)
        assert replays(own) == 8


class Interrupted(BaseStreamer):  # type: ignore[misc]
    """Raises at the sixth token."""

    def __init__(self) -> None:
        self.num_tokens = 0

    def put(self, value: torch.Tensor) -> None:
        self.num_tokens += value.numel()
        if self.num_tokens > PROMPT.shape[1] + 5:
            raise KeyboardInterrupt

    def end(self) -> None:
        raise AssertionError("the text did not end")


def test_an_interrupted_text_leaves_the_user_a_cache_that_nothing_else_changes(tiny: Callable[..., Any]) -> None:
    from transformers.cache_utils import DynamicCache

    model = tiny()
    own, cache = graphed(streamer=Interrupted()), DynamicCache(config=model.config)
    name = "cache" if "cache" in both(model, graphed()) else "past_key_values"
    with own:
        with pytest.raises(KeyboardInterrupt):
            model.generate(PROMPT, custom_generate=own, max_new_tokens=20, do_sample=False, **{name: cache})
        kept = copy.deepcopy(cache)
        assert cache.get_seq_length() == PROMPT.shape[1] + 5
        own.streamer = None
        both(model, own, PROMPT.flip(1))
        assert all(torch.equal(a.keys, b.keys) for a, b in zip(cache.layers, kept.layers, strict=True))


def test_other_layers_are_recorded_anew(tiny: Callable[..., Any]) -> None:
    model = tiny()
    with graphed() as own:
        both(model, own)
        model.model.layers[1].mlp.up_proj = torch.nn.Linear(64, 96, bias=False)
        both(model, own)
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        both(model, own)
        assert SimulatedCall.made == 3


def test_a_model_that_waits_for_the_device_is_launched_as_ever(tiny: Callable[..., Any]) -> None:
    model = tiny()
    model.model.layers[0].register_forward_hook(lambda module, inputs, output: float(output.sum()) and None)
    with graphed() as own:
        with pytest.warns(RuntimeWarning, match=r"not recorded as CUDA graphs.*LlamaForCausalLM: .*waits for"):
            both(model, own)
        assert replays(own) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            both(model, own, PROMPT.flip(1))


@pytest.mark.parametrize(
    "prepare",
    [
        lambda model: model.set_attn_implementation("eager"),
        lambda model: model.train(),
        lambda model: setattr(model, "peft_config", {}),
    ],
    ids=["eager", "training", "adapters"],
)
def test_a_kind_that_cannot_be_recorded_is_launched_without_a_word(
    tiny: Callable[..., Any], prepare: Callable[[Any], Any]
) -> None:
    model = tiny()
    prepare(model)
    with graphed() as own, warnings.catch_warnings():
        warnings.simplefilter("error")
        both(model, own)
        assert replays(own) == SimulatedCall.made == 0


def test_windows_are_launched_without_a_word(tiny: Callable[..., Any]) -> None:
    model = tiny(model_type="mistral", sliding_window=6)
    with graphed() as own:
        both(model, own)
        assert replays(own) == 0


def test_too_little_memory_for_keys_and_values_is_said(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny()
    monkeypatch.setattr(passes, "free_bytes", lambda device: 1000)
    with graphed() as own:
        with pytest.warns(RuntimeWarning, match=r"256 positions of keys and values are 0\.00 GB; 0\.00 GB are free"):
            both(model, own)
        assert replays(own) == 0


def test_beams_and_batches_are_refused(tiny: Callable[..., Any]) -> None:
    model = tiny()
    with graphed() as own:
        with pytest.raises(ModelError, match="num_beams=2"):
            model.generate(PROMPT, custom_generate=own, num_beams=2, max_new_tokens=4)
        with pytest.raises(ModelError, match="a batch of 2"):
            model.generate(PROMPT.repeat(2, 1), custom_generate=own, max_new_tokens=4)


def test_passes_that_are_too_long_are_launched_and_the_next_are_replays(
    tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proposer of 20 tokens, all right, every other round."""
    model = tiny()
    expected = model.generate(PROMPT, max_new_tokens=60, do_sample=False)[0].tolist()
    run = Decoding.run

    class Oracle:
        def __init__(self) -> None:
            self.num_rounds = 0

        def propose(self, context: list[int], max_tokens: int) -> list[int]:
            self.num_rounds += 1
            wanted = min((1, 20)[self.num_rounds % 2], max_tokens)
            return expected[len(context) : len(context) + wanted]

        def learn(self, *_: Any) -> None:
            pass

    oracle = Oracle()
    monkeypatch.setattr(Decoding, "run", lambda self, chain: run(self, oracle))
    with graphed() as own:
        assert model.generate(PROMPT, custom_generate=own, max_new_tokens=60, do_sample=False)[0].tolist() == expected
        assert own.last is not None
        assert own.last.num_rounds < 12
        assert 2 <= own.last.num_replays < own.last.num_rounds - 2
