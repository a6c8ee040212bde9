"""Passes by graphs: on the CPU a graph runs its pass again, so lengths, padding and caches are those of a GPU."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="mxconv[gpu] is not installed: pip install triton")
pytest.importorskip("transformers", reason="mxconv[hf] is not installed: transformers is missing")

import torch
from commands import environment, run_forked
from gpu_weights import DEVICE
from packages import quantize
from torch.utils._python_dispatch import TorchDispatchMode
from torch_models import endless_model

from mxconv.errors import ModelError
from mxconv.interop.transformers import drafts, quantize_model
from mxconv.interop.transformers.graphed_target import LEAST_POSITIONS, WIDTHS, PassGraphs
from mxconv.interop.transformers.torch_target import cache_name

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPT = torch.tensor([[5, 9, 3, 7]], device=DEVICE)


@pytest.fixture
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Path]]:
    """As `endless_model`, on the device."""

    def make(**changes: Any) -> tuple[Any, Path]:
        model, package = endless_model(tmp_path_factory.mktemp("random"), **changes)
        return model.to(DEVICE, torch.float32), package  # in which rounding decides no token

    return make


def generated(model: Any, prompt: torch.Tensor = PROMPT, new: int = 24, **arguments: Any) -> list[int]:
    tokens: list[int] = model.generate(prompt, max_new_tokens=new, do_sample=False, **arguments)[0].tolist()
    return tokens


@pytest.mark.parametrize("num_draft_tokens", [1, 3, 6])
def test_tokens_are_those_of_passes_without_graphs(
    tiny: Callable[..., tuple[Any, Path]], num_draft_tokens: int
) -> None:
    model, package = tiny()
    with drafts(package, num_draft_tokens=[num_draft_tokens], confidence=[0.0], graphs=True, check=True) as own:
        for prompt in (PROMPT, PROMPT.flip(1), PROMPT[:, :2]):
            assert generated(model, prompt, custom_generate=own) == generated(model, prompt)
            assert own.last is not None
            assert own.last.difference is None
            assert own.last.num_rounds <= 24


def test_both_levels_of_one_model_have_graphs(tiny: Callable[..., tuple[Any, Path]], tmp_path: Path) -> None:
    model, package = tiny()
    quantize(package.parent / "source", tmp_path / "bsfp", codec="bsfp")
    quantize_model(model.cpu().bfloat16(), "bsfp", device=DEVICE)
    model.float()
    with drafts(tmp_path / "bsfp", num_draft_tokens=[3], confidence=[0.0], graphs=True, device=DEVICE) as own:
        assert generated(model, new=5, custom_generate=own) == generated(model, new=5)
        assert own._graphs is not None
        assert {("draft", 1), ("target", 4)} <= set(own._graphs._replays)


def test_a_pass_asks_nothing_of_the_device(tiny: Callable[..., tuple[Any, Path]]) -> None:
    """While a graph is captured the host cannot wait for numbers."""
    model, _ = tiny()
    graphs = PassGraphs(model, 1)
    read = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if operation.overloadpacket in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero):
                read.append(str(operation))
            return operation(*args, **(kwargs or {}))

    with torch.no_grad():
        model(input_ids=PROMPT, use_cache=True, **{cache_name(): graphs.cache})
        with Watch():
            int(torch.zeros(1))
            assert len(read) == 1
            graphs._pass(PROMPT[:, :2])
    assert len(read) == 1


@pytest.mark.parametrize("count", range(1, 17))
def test_padding_changes_no_logit_and_no_later_pass(tiny: Callable[..., tuple[Any, Path]], count: int) -> None:
    model, _ = tiny()
    graphs = PassGraphs(model, 1)
    tokens = (torch.arange(2 * count, device=DEVICE) * 7 % 50)[None]
    with torch.no_grad():
        whole = model(input_ids=torch.cat((PROMPT, tokens), dim=1)).logits[0, 4:]
        model(input_ids=PROMPT, use_cache=True, **{cache_name(): graphs.cache})
        first = graphs.logits(tokens[:, :count], 4, "target").clone()
        second = graphs.logits(tokens[:, count:], 4 + count, "target")
    torch.testing.assert_close(torch.cat((first, second)), whole)
    assert [width for _, width in graphs._replays] == [min(each for each in WIDTHS if each >= count)]


def test_graphs_outlast_a_text_while_there_is_room(tiny: Callable[..., tuple[Any, Path]]) -> None:
    model, package = tiny(max_position_embeddings=2 * LEAST_POSITIONS)
    with drafts(package, graphs=True) as own, counted_captures() as captured:
        generated(model, custom_generate=own)
        assert captured
        captured.clear()
        generated(model, custom_generate=own)
        assert not captured
        generated(model, PROMPT.repeat(1, LEAST_POSITIONS // 4), custom_generate=own)
        assert captured


@contextmanager
def counted_captures() -> Iterator[list[int]]:
    captured: list[int] = []
    whole = PassGraphs._captured

    def counted(self: PassGraphs, width: int) -> Any:
        captured.append(width)
        return whole(self, width)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PassGraphs, "_captured", counted)
        yield captured


def test_what_graphs_cannot_do_is_refused(tiny: Callable[..., tuple[Any, Path]]) -> None:
    model, package = tiny(model_type="mistral", sliding_window=5)
    with (
        drafts(package, graphs=True) as own,
        pytest.raises(ModelError, match=r"StaticSlidingWindowLayer and .*; full attention in every layer, by sdpa"),
    ):
        generated(model, custom_generate=own)
    model, package = tiny()
    mask = torch.tensor([[0, 1, 1, 1]], device=DEVICE)
    with (
        drafts(package, graphs=True) as own,
        pytest.raises(ModelError, match=r"generate: padding, .*; one whole text is required for CUDA graphs"),
    ):
        generated(model, attention_mask=mask, custom_generate=own)


def test_the_example_compares_a_model_with_its_package(tiny: Callable[..., tuple[Any, Path]], tmp_path: Path) -> None:
    _, package = tiny()
    source, bsfp = package.parent / "source", tmp_path / "bsfp"
    quantize(source, bsfp, codec="bsfp")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "abc"}\n')
    words = [EXAMPLES / "gpu_decode.py", source, bsfp, tmp_path / "prompts.jsonl", "--no-compiled"]
    options = ["--device", str(DEVICE), "--max-new-tokens", "3", "--num-draft-tokens", "2"]
    done = run_forked((*map(str, words), *options), environment(), tmp_path, ("torch", "transformers"))
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| B")]
    assert [row[0] for row in rows] == ["| BF16", "| BSFP", "| BSFP with its draft"]
    assert [row[2] for row in rows] == ["3", "3", "3"]
