"""Online Speculative Decoding (arXiv 2310.07177) in kind: a speculator that goes on learning from its target's answers.

    python examples/papers/online_speculation.py PACKAGE SPECULATOR FILES.py... [--num-requests N] [--json]

Prompts are the beginnings of unit tests for the functions that FILES define, in an order of chance: one topic, no
prompt twice. After each answer the MLP speculator takes some steps on the answer's tokens and the target's states.
A line of the table is a number of requests one after another, and the share of the speculator's tokens that the target
accepted, with and without learning; an answer that differs is an error. Where the paper learns from the target's
distribution over what was rejected, this learns from all tokens of an answer.
"""

import json
import random
import re
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from safetensors.torch import load_file

from mxconv.codecs.float16 import BF16
from mxconv.decode import TextModel, load
from mxconv.drafts.speculator import MlpSpeculator
from mxconv.engine.sequence_rows import States
from mxconv.engine.weights import ModelWeights
from mxconv.train.speculator_training import SpeculatorModel, stage_losses

HEAD = r"\bdef ([a-z]\w+)\("
TEST = "import unittest\n\n\nclass {title}Test(unittest.TestCase):\n    def test_{name}(self):\n"
LEARNING_RATE = 3e-4  # a higher one makes texts that it was trained on worse, see docs/research/log.md
BATCH, VISITS = 256, 16  # positions of a step, and steps that each is part of, in the mean
MOST_NORM = 1.0


def prompts_of(files: list[Path], count: int) -> list[str]:
    """A unit test to be written for every function that the files define, in an order of chance."""
    names = sorted({name for path in files for name in re.findall(HEAD, path.read_text())})
    random.Random(0).shuffle(names)
    return [TEST.format(name=name, title=name.title().replace("_", "")) for name in names[:count]]


class OnlineSpeculator:
    """The speculator of a model's last level, which gets new weights while the model decodes."""

    def __init__(self, model: TextModel, folder: Path) -> None:
        level = model.loaded.levels[-1]
        assert isinstance(level.reader, MlpSpeculator)
        self.reader, self.matrices = level.reader, model.loaded.matrices
        self.target = model.loaded.target
        self.model = SpeculatorModel(self.reader.config)
        self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)  # tied ones are there once
        self.optimizer = torch.optim.Adam(self.model.parameters(), LEARNING_RATE, (0.9, 0.95))
        self.states: list[torch.Tensor] = []  # of the target, each with the tokens from the one before it on
        self.tokens: list[torch.Tensor] = []

    def learn(self, prompt: list[int], answer: list[int]) -> None:
        """Take the steps that an answer is worth; a prompt is what a user wrote, and nothing to learn."""
        ids, states = [*prompt, *answer], States(normed_last=True)
        self.target.forward(ids, self.target.new_cache(), states=states)
        assert states.values is not None
        num_read = self.reader.config.n_predict + 2
        first = max(len(prompt) - 2, 0)  # the first stage chooses the token two places on
        windows = np.lib.stride_tricks.sliding_window_view(np.array(ids), num_read)[first:]
        self.states += torch.from_numpy(states.values[0, first : first + len(windows)])
        self.tokens += torch.from_numpy(windows.copy())
        for _ in range(VISITS * len(windows) // BATCH):
            chosen = random.choices(range(len(self.states)), k=BATCH)
            tokens = torch.stack([self.tokens[place] for place in chosen])
            logits = self.model(torch.stack([self.states[place] for place in chosen])[:, None], tokens)
            self.optimizer.zero_grad()
            stage_losses(logits, tokens).mean().backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), MOST_NORM)
            self.optimizer.step()
        self.install()

    def install(self) -> None:
        """Draft with the weights of now, rounded to BF16."""
        coded = {name: BF16.encode(each.detach().numpy()) for name, each in self.model.named_parameters()}
        matrices = {name: self.matrices.table(codes, BF16) for name, codes in coded.items() if codes.ndim == 2}
        vectors = {name: BF16.decode(codes) for name, codes in coded.items() if codes.ndim == 1}
        self.reader.stages = MlpSpeculator(self.reader.config, ModelWeights(matrices, vectors), "learned").stages


def main(
    package: str,
    speculator: Path,
    files: list[Path],
    num_requests: int = 200,
    rows: int = 5,
    max_new_tokens: int = 64,
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object as the last line of stdout")] = False,
) -> None:
    random.seed(0)
    prompts = prompts_of(files, num_requests)
    counts: dict[bool, list[tuple[int, int]]] = {}  # accepted and proposed, a pair a request
    texts: dict[bool, list[list[int]]] = {}
    for learns in (False, True):
        with load(package, [f"speculator:{speculator}"], levels=["target"]) as model:
            learner = OnlineSpeculator(model, speculator)
            counts[learns], texts[learns] = [], []
            for prompt in prompts:  # in chains that do not adapt
                lengths = {"num_draft_tokens": [learner.reader.config.n_predict], "confidence": [0.0]}
                made = model.generate(prompt, max_new_tokens=max_new_tokens, tree="chain", temperature=0, **lengths)
                level = made.generation.trace.statistics[-1]
                counts[learns].append((level.num_accepted, level.num_proposed))
                texts[learns].append(made.token_ids)
                if learns:
                    learner.learn(model.encode(prompt), made.token_ids)
    if texts[False] != texts[True]:
        raise SystemExit("tokens differ")
    shares: dict[str, tuple[float, float]] = {}
    for row in range(rows):
        part = slice(row * len(prompts) // rows, (row + 1) * len(prompts) // rows)
        sums = [np.sum(counts[learns][part], axis=0) for learns in (False, True)]
        shares[f"{part.start + 1} to {part.stop}"] = plain, learned = sums[0][0] / sums[0][1], sums[1][0] / sums[1][1]
        print(f"requests {part.start + 1} to {part.stop}: {plain:.3f}, learning {learned:.3f}")
    if json_output:
        print(json.dumps(shares))


if __name__ == "__main__":
    typer.run(main)
