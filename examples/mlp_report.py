"""The MLP speculators' report in kind: what candidates, tokens heard, the second stage and more heads are worth.

    python examples/mlp_report.py TARGET TEXTS.jsonl PROMPTS.jsonl WORK [--steps N] [--num-prompts N] [--json]

Trains five drafts for TARGET, a 16-bit folder, on TEXTS and on text that TARGET writes: three heads of which every one
hears the tokens chosen before it, by both stages and by the first alone; three of Medusa's, which hear none; five and
seven. Then it counts tokens a step, greedily, on continuations of PROMPTS, for 1 to 32 candidates. Trained drafts stay
in WORK, where a run that was killed goes on.

The tables are those of arXiv 2404.19124: 2.28 to 2.63 tokens a step by hearing tokens, 2.41 to 2.63 by the second
stage (best of 10 candidates, section 3), 2.21 to 3.03 from 1 to 32 candidates (Table 1).
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file

from mxconv.arrays import F32
from mxconv.drafts.acceptance import GreedyAcceptance
from mxconv.drafts.proposal import Proposal
from mxconv.drafts.readers.mlp_speculator import SpeculatorConfig
from mxconv.drafts.speculator import grow_candidates
from mxconv.engine.cache import KVCache
from mxconv.engine.states import States
from mxconv.engine.tree import Tree
from mxconv.speculation.prompts import read_prompts
from mxconv.text.chat import encode_prompts
from mxconv.text.distribution import Sampling
from mxconv.text.tokenizer import Tokenizer
from mxconv.train.fit import accelerator, fit
from mxconv.train.frozen_target import FrozenTarget
from mxconv.train.schedule import Stage
from mxconv.train.speculator import SpeculatorTask
from mxconv.train.speculator_model import SpeculatorModel
from mxconv.train.target_decoder import target_decoder
from mxconv.train.windows import Windows, text_windows
from mxconv.train.written import continuations

CANDIDATES = (1, 2, 4, 8, 16, 32)
TOP_K = (6, 3, 2)  # section 4.1; further heads add no branches, so that a tree fits into a pass
LENGTH, BATCH_TOKENS, PROMPT_TOKENS = 256, 4096, 64
PEAK, SEED = 1e-2, 0  # ten times the paper's rate: these targets are small and the steps few, see docs/training.md


@dataclass(frozen=True)
class Variant:
    name: str
    heads: int = 3
    hears_tokens: bool = True
    second_stage: bool = True


VARIANTS = (
    Variant("3 heads"),
    Variant("3 heads, stage 1 alone", second_stage=False),
    Variant("3 heads, none hears tokens", hears_tokens=False),
    Variant("5 heads", heads=5),
    Variant("7 heads", heads=7),
)


@dataclass(frozen=True)
class Text:
    """What the target makes of a prompt, and the state behind which it said each token.

    Args:
        tokens: (n,) the new ones.
        states: (n, hidden_size): row i chose token i.
    """

    tokens: list[int]
    states: F32


def trained(
    variant: Variant, target: FrozenTarget, sizes: SpeculatorConfig, stages: Sequence[Stage], work: Path
) -> SpeculatorModel:
    """A variant, trained unless it is there."""
    folder = work / variant.name.replace(" ", "-").replace(",", "")
    weights = folder / "model.safetensors"
    if not weights.is_file():
        save_file(train(variant, target, sizes, stages, folder), weights)
    model = SpeculatorModel(config_of(variant, sizes), variant.hears_tokens)
    model.load_state_dict(load_file(weights))
    return model


def train(
    variant: Variant, target: FrozenTarget, sizes: SpeculatorConfig, stages: Sequence[Stage], folder: Path
) -> dict[str, torch.Tensor]:
    task = SpeculatorTask(config_of(variant, sizes), target, torch.float32, variant.hears_tokens)
    chosen = stages if variant.second_stage else stages[:1]
    torch.manual_seed(SEED)
    tensors = fit(task, task.model(), chosen, folder, SEED, repr(variant), accelerator())
    assert tensors is not None  # of one process
    return tensors


def config_of(variant: Variant, sizes: SpeculatorConfig) -> SpeculatorConfig:
    top_k = (*TOP_K, *(1,) * variant.heads)[: variant.heads]
    return SpeculatorConfig(
        sizes.vocab_size, sizes.emb_dim, sizes.inner_dim, variant.heads, top_k, 5, tie_weights=False, scale_input=True
    )


def texts_of(target: Path, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[Text]:
    """Greedy continuations, with states."""
    made = []
    with target_decoder(target) as decoder:
        for prompt in prompts:
            cache, todo, tokens, states = KVCache(decoder.config), list(prompt), [], []
            for _ in range(num_tokens):
                reads = States(normed_last=True)
                logits = decoder.forward(todo, cache, True, None, reads)
                assert reads.values is not None
                states.append(reads.values[0, -1])
                todo = [int(logits[0].argmax())]
                tokens += todo
            made.append(Text(tokens, np.array(states)))
    return made


class Heads:
    """The candidate tree of a trained variant behind one state."""

    def __init__(self, model: SpeculatorModel, state: F32, token: int) -> None:
        self._model = model
        self._paths: list[tuple[int, ...]] = []  # of the tree's rows
        self._state = torch.from_numpy(state)
        self._token = token

    def logits(self, paths: Sequence[tuple[int, ...]]) -> F32:
        """(len(paths), vocab_size) behind paths of one length: by the model as it was trained, on all at once."""
        num_stages = self._model.config.n_predict
        rows = [[0, self._token, *path] for path in paths]
        ids = torch.tensor([[*row, *[0] * (num_stages + 2 - len(row))] for row in rows])
        states = self._state.expand(len(paths), ids.shape[1], -1)
        with torch.no_grad():
            made: F32 = self._model(states, ids)[len(paths[0])][:, 0].numpy()
        return made

    def evaluate(self, tokens: Sequence[int], tree: Tree) -> F32:
        new = [
            (*(self._paths[parent] if parent >= 0 else ()), token)
            for token, parent in zip(tokens, tree.parents[tree.num_cached :], strict=True)
        ]
        self._paths += new
        return self.logits(new)


def tokens_a_step(model: SpeculatorModel, texts: Sequence[Text], num_candidates: int) -> float:
    """Greedy decoding in which each step's tree is judged by the text."""
    num_steps = num_tokens = 0
    for text in texts:
        place = 1  # tokens that stand: the first is the prompt's own
        while place < len(text.tokens):
            heads = Heads(model, text.states[place - 1], text.tokens[place - 1])
            proposal = grow_candidates(
                heads.logits([()])[0], 0, heads.evaluate, GreedyAcceptance(), model.config.top_k_tokens_per_head,
                num_candidates,
            )  # fmt: skip
            stood = min(1 + num_that_stand(proposal, text.tokens[place:]), len(text.tokens) - place)
            num_steps, num_tokens, place = num_steps + 1, num_tokens + stood, place + stood
    return num_tokens / num_steps


def num_that_stand(proposal: Proposal, tokens: Sequence[int]) -> int:
    node, count = -1, 0
    for token in tokens:
        child = next((child for child in proposal.children(node) if proposal.tokens[child] == token), None)
        if child is None:
            break
        node, count = child, count + 1
    return count


def measure(say: Callable[[str], None]) -> dict[str, dict[int, float]]:
    """Train all variants and count."""
    arguments = parse()
    tokenizer = Tokenizer.from_folder(arguments.target)
    arguments.work.mkdir(parents=True, exist_ok=True)
    target = FrozenTarget(arguments.target, torch.device("cpu"))
    hidden_size, vocab_size = target.model.config.hidden_size, target.model.config.vocab_size
    sizes = SpeculatorConfig(vocab_size, hidden_size, 2 * hidden_size, 3, TOP_K, 5, False, False)
    later = round(arguments.steps * 2 / 7)
    found = text_windows([arguments.texts], tokenizer, LENGTH)
    own = arguments.work / "own.npy"
    if not own.is_file():
        num_texts = min(later * BATCH_TOKENS // LENGTH, 4096)
        starts = text_windows([arguments.texts], tokenizer, PROMPT_TOKENS).token_ids
        starts = starts[np.arange(num_texts) % len(starts)]
        with target_decoder(arguments.target) as decoder:
            rows = list(continuations(decoder, starts, LENGTH - PROMPT_TOKENS, Sampling(1.0), SEED))
        np.save(own, np.concatenate(rows))
        say(f"{num_texts} texts written by the target")
    written = Windows(np.load(own, allow_pickle=False), PROMPT_TOKENS)
    batch = BATCH_TOKENS // LENGTH
    stages = [
        Stage("text", found, arguments.steps - later, batch, PEAK, PEAK / 10),
        Stage("own text", written, later, batch, PEAK / 10, PEAK / 100),
    ]
    prompts = encode_prompts(tokenizer, arguments.target, read_prompts(arguments.prompts)[: arguments.num_prompts])
    texts = texts_of(arguments.target, prompts, arguments.num_tokens)
    result: dict[str, dict[int, float]] = {}
    for variant in VARIANTS:
        model = trained(variant, target, sizes, stages, arguments.work)
        result[variant.name] = {count: tokens_a_step(model, texts, count) for count in CANDIDATES}
        say(f"{variant.name}: " + ", ".join(f"{count}: {rate:.2f}" for count, rate in result[variant.name].items()))
    return result


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("texts", type=Path)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=1400, help="of both stages")
    parser.add_argument("--num-prompts", type=int, default=50)
    parser.add_argument("--num-tokens", type=int, default=64, help="of each text")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    console = Console(stderr=True)
    result = measure(lambda text: console.print(text, highlight=False))
    table = Table("tokens a step, candidates", *(str(count) for count in CANDIDATES))
    for name, rates in result.items():
        table.add_row(name, *(f"{rate:.2f}" for rate in rates.values()))
    Console().print(table)
    if parse().json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
