"""An MLP speculator that learns while its target serves: from states and tokens of answers, between requests.

    learner = learner_of(model, package)       # of the model's own speculator, or of a new one, which it adds
    Serving({name: model}, {}, options, announce, {name: learner}).run()

States and tokens stay in memory. What is written, beside the package, is a speculator like any other.

Source:
    Liu et al., "Online Speculative Decoding" (arXiv 2310.07177): training on the target's answers with idle compute.
"""

import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mxconv.arrays import F32, I64
from mxconv.codecs.float16 import FORMATS
from mxconv.decode import TextModel
from mxconv.drafts.kind import DraftSpec
from mxconv.drafts.readers.mlp_speculator import MlpSpeculator, SpeculatorConfig
from mxconv.drafts.speculator import SPECULATOR
from mxconv.engine.matrices import Matrices
from mxconv.engine.states import Reads
from mxconv.engine.weights import ModelWeights
from mxconv.errors import ModelError
from mxconv.serving.learner import Outcome, Weights
from mxconv.speculation.chain import num_models
from mxconv.speculation.loaded_level import LoadedLevel
from mxconv.speculation.session import Session, common_length
from mxconv.speculation.statistics import LevelStatistics
from mxconv.train.speculator_training import SpeculatorModel, stage_losses
from mxconv.train.training_task import num_parameters, write_draft

NEW_STAGES = 3
MOST_NEW = 200_000_000  # weights of the output head of a new speculator
MOST_TRAINED = 16_000_000  # weights; of a larger speculator embeddings and heads stay as they are
MOST_BYTES = 1 << 26  # of states in memory
MOST_POSITIONS, FEWEST_POSITIONS = 256, 8  # of a step
STEP_FLOPS = 1e10  # of a step, where the fewest positions do not take more
VISITS = 16  # steps that a position is part of, in the mean
LEARNING_RATE, NEW_LEARNING_RATE = 3e-4, 1e-3  # more of the former makes texts that it was trained on worse
BETAS, MOST_NORM = (0.9, 0.95), 1.0
SAVE_SECONDS = 60.0  # between two writes
FILES = "config.json", "model.safetensors"


class OnlineSpeculator:
    """Implements `Learner`.

    Args:
        level: whose reader is an MLP speculator; it gets new weights.
        make: its matrices.
        folder: of what it learned before, if it exists, and of what it learns.
        learning_rate: of all steps.

    Raises:
        ModelError: the folder holds a speculator of other sizes.
        OSError: nothing can be written there.
    """

    def __init__(self, level: LoadedLevel, make: Matrices, folder: Path, learning_rate: float) -> None:
        assert isinstance(level.reader, MlpSpeculator)
        self.name = level.name
        self.num_steps = 0
        self.num_tokens: Counter[tuple[Weights, Outcome]] = Counter()
        self._reader, self._folder, self._make = level.reader, folder, make
        self._format = FORMATS["F16" if level.record.codec == "f16" else "BF16"]
        config = self._reader.config
        self._model = SpeculatorModel(config)
        load_weights(self._model, self._reader)
        if (folder / FILES[1]).is_file():
            _load_learned(self._model, folder, level)
        folder.mkdir(mode=0o700, exist_ok=True)  # what it learned may tell of the texts
        is_large, named = num_parameters(self._model) > MOST_TRAINED, dict(self._model.named_parameters())
        for name, each in named.items():
            each.requires_grad_(not (is_large and name.split(".")[1] in ("emb", "head")))
        self._trained = {name: each for name, each in named.items() if each.requires_grad}
        self._optimizer = torch.optim.Adam(self._trained.values(), learning_rate, BETAS)
        self._weights = ModelWeights({}, {})
        self._install(named)
        self._buffer = StateBuffer(max(MOST_BYTES // (4 * config.emb_dim), 1), config.emb_dim, config.n_predict + 2)
        flops = 6.0 * config.n_predict * config.inner_dim * (config.inner_dim + config.vocab_size)  # of a position
        self._num_positions = min(max(int(STEP_FLOPS / flops), FEWEST_POSITIONS), MOST_POSITIONS)
        self._num_due = 0  # visits of positions
        self._saved = 0, time.monotonic()  # at which step, and when

    def observe(
        self, tokens: Sequence[int], num_prompt_tokens: int, session: Session, statistics: Sequence[LevelStatistics]
    ) -> None:
        """Keep the states of an answer, and count; a prompt is what a user wrote, and nothing to learn."""
        weights: Weights = "learned" if self.num_steps else "loaded"
        own = next(each for each in statistics if each.name == self.name)
        self.num_tokens[weights, "proposed"] += own.num_proposed
        self.num_tokens[weights, "accepted"] += own.num_accepted
        num_read = self._reader.config.n_predict + 2
        first = max(num_prompt_tokens - 2, 0)  # the first stage chooses the token two places on
        stop = min(common_length(session.tokens, tokens), len(tokens) - num_read + 1)
        if stop <= first or not session.states.reads.normed_last:  # too short, or it reads a level below alone
            return
        states = session.states.read(Reads(normed_last=True), first, stop)[0]
        rows = np.lib.stride_tricks.sliding_window_view(np.array(tokens, np.int64), num_read)[first:stop]
        known = rows.max(1) < self._reader.config.vocab_size
        self._buffer.add(states[known], rows[known])
        self._num_due = min(self._num_due + VISITS * int(known.sum()), VISITS * len(self._buffer))

    @property
    def is_behind(self) -> bool:
        return self._num_due >= self._num_positions

    def learn(self) -> None:
        states, tokens = self._buffer.sample(self._num_positions)
        loss = stage_losses(self._model(states[:, None], tokens), tokens).mean()
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if torch.nn.utils.clip_grad_norm_(self._trained.values(), MOST_NORM).isfinite():
            self._optimizer.step()
        self.num_steps += 1
        self._num_due -= self._num_positions
        self._install(self._trained)
        if not self.is_behind and time.monotonic() - self._saved[1] > SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        if self._saved[0] == self.num_steps:
            return
        beside = self._folder.with_name(self._folder.name + ".new")
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(mode=0o700)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        dtype = torch.float16 if self._format.name == "F16" else torch.bfloat16
        write_draft(self._reader.config.to_dict(), self._model.state_dict(), {}, dtype, beside)
        for name in FILES:
            (beside / name).replace(self._folder / name)
        beside.rmdir()
        self._saved = self.num_steps, time.monotonic()

    def _install(self, named: dict[str, torch.nn.Parameter]) -> None:
        """Let the reader have these weights, rounded as its file has them."""
        made = weights_of(named, self._make, self._format.name)
        matrices, vectors = {**self._weights.matrices, **made.matrices}, {**self._weights.vectors, **made.vectors}
        self._weights = ModelWeights(matrices, vectors)
        self._reader.stages = MlpSpeculator(self._reader.config, self._weights, self.name).stages


class StateBuffer:
    """States of a target, each with the token before, its own and those after it; new ones replace the oldest."""

    def __init__(self, capacity: int, state_size: int, num_tokens: int) -> None:
        self._states = np.empty((capacity, state_size), np.float32)
        self._tokens = np.empty((capacity, num_tokens), np.int64)
        self._num_added = 0
        self._random = np.random.default_rng()

    def __len__(self) -> int:
        return min(self._num_added, len(self._states))

    def add(self, states: F32, tokens: I64) -> None:
        """Keep states, (n, state_size), with tokens, (n, num_tokens), or the last of them."""
        states, tokens = states[-len(self._states) :], tokens[-len(self._states) :]
        places = (self._num_added + np.arange(len(states))) % len(self._states)
        self._states[places], self._tokens[places] = states, tokens
        self._num_added += len(states)

    def sample(self, count: int) -> tuple[Tensor, Tensor]:
        """States, (count, state_size), and their tokens, (count, num_tokens), drawn with replacement."""
        rows = self._random.integers(0, len(self), count)
        return torch.from_numpy(self._states[rows]), torch.from_numpy(self._tokens[rows])


def learner_of(model: TextModel, package: str, num_threads: int | None = None) -> OnlineSpeculator:
    """What lets the first MLP speculator of a model learn; one without gets a new speculator, before its look-ups.

    Weights are those of PACKAGE.learned, the folder beside the package, if it exists. `num_threads` train; None leaves
    that to torch.

    Raises:
        ModelError: the package is no folder, PACKAGE.learned holds a speculator of other sizes, or the target's
            vocabulary is too large for a new one.
    """
    root = Path(package).resolve()
    if not root.is_dir():
        raise ModelError(
            f"--learn: {package} is no folder; one is required, since what is learned is saved beside it. "
            f"Run: mxconv pull {package}"
        )
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    folder, levels = root.with_name(root.name + ".learned"), model.loaded.levels
    learning_rate = LEARNING_RATE
    level = next((level for level in levels if isinstance(level.reader, MlpSpeculator)), None)
    if level is None:
        level, learning_rate = _begun(model, folder), NEW_LEARNING_RATE
        levels.insert(num_models(levels), level)
    return OnlineSpeculator(level, model.loaded.matrices, folder, learning_rate)


def _begun(model: TextModel, folder: Path) -> LoadedLevel:
    """A new speculator whose embedding and output head are the target's; of the sizes of the one in the folder."""
    target, loaded = model.loaded.target, model.loaded
    vocab_size, hidden_size = target.config.vocab_size, target.config.hidden_size
    config = SpeculatorConfig(vocab_size, hidden_size, hidden_size, NEW_STAGES, (5, 4, 3), 5, True, True)
    if (folder / FILES[1]).is_file():
        config = SpeculatorConfig.from_file(folder / FILES[0])
        config.sizes.check_target(target.config, loaded.target_vocabulary.num_tokens, str(folder))
    if config.vocab_size * config.inner_dim > MOST_NEW:
        raise ModelError(
            f"--learn: {vocab_size} tokens with states of {hidden_size} numbers; at most {MOST_NEW:,} of their product "
            "are begun here. Train one with mxconv train speculator, and give --draft speculator:PATH."
        )
    made = SpeculatorModel(config)
    if (config.vocab_size, config.inner_dim) == (vocab_size, hidden_size):
        tables = (torch.from_numpy(matrix.rows(np.arange(vocab_size))) for matrix in (target.embedding, target.head))
        made.load(*tables)
    weights = weights_of(dict(made.named_parameters()), loaded.matrices, "BF16")
    record = SPECULATOR.record(DraftSpec("speculator", num_draft_tokens=config.n_predict), "learned", "bf16")
    return LoadedLevel(record, None, loaded.tokenizer, reader=MlpSpeculator(config, weights, record.name))


def weights_of(named: dict[str, torch.nn.Parameter], make: Matrices, dtype: str) -> ModelWeights:
    """Copies of parameters, rounded to BF16 or F16."""
    kind = FORMATS[dtype]
    coded = {name: kind.encode(each.detach().numpy()) for name, each in named.items()}
    matrices = {name: make.table(codes, kind) for name, codes in coded.items() if codes.ndim == 2}
    return ModelWeights(matrices, {name: kind.decode(codes) for name, codes in coded.items() if codes.ndim == 1})


@torch.no_grad()
def load_weights(model: SpeculatorModel, reader: MlpSpeculator) -> None:
    """Copy the weights of a speculator that drafts into one of the same sizes that learns."""
    for name, parameter in model.named_parameters():
        _, part, index, kind = name.split(".")
        stage = reader.stages[int(index)]
        if part == "ln":
            values = stage.scale if kind == "weight" else stage.shift
        else:
            matrix = {"emb": stage.embedding, "proj": stage.projection, "head": stage.head}[part]
            values = matrix.rows(np.arange(matrix.shape[0]))
        parameter.copy_(torch.from_numpy(np.array(values)))


def _load_learned(model: SpeculatorModel, folder: Path, level: LoadedLevel) -> None:
    """Copy what was learned before into a model; the files are closed afterwards, so that they can be replaced."""
    if SpeculatorConfig.from_file(folder / FILES[0]) != model.config:
        raise ModelError(
            f"{folder}: holds a speculator of other sizes than level {level.name}; what that level learned is "
            "required. Move the folder away, or serve with the draft that it belongs to."
        )
    with ExitStack() as files:
        record = level.record.model_copy(update={"codec": "bf16"})
        stored = SPECULATOR.reader(folder, record, Matrices(), files)
        load_weights(model, stored)
