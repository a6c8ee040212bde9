"""Training an MLP speculator: the model that runs is the model that was trained, and its losses are what they are."""

from pathlib import Path

import numpy as np
import pytest
import torch
from reader_levels import open_reader
from speculators import speculator_config
from trained_levels import TRAINED

from mxconv.drafts.speculator import SpeculatorConfig
from mxconv.errors import ModelError
from mxconv.train.speculator_training import SpeculatorTask
from mxconv.train.training_task import FrozenTarget
from mxconv.train.windows import Windows

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 1024, (3, 20))


def config(tied: bool = False, scaled: bool = False, n_predict: int = 3) -> SpeculatorConfig:
    values = speculator_config(64, 1024, {"tie_weights": tied, "scale_input": scaled, "n_predict": n_predict})
    del values["architectures"], values["model_type"]
    return SpeculatorConfig(**values | {"top_k_tokens_per_head": (4, 3, 2, 2, 2)[:n_predict]})


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_what_is_written_runs_as_it_was_trained(tied: bool, scaled: bool, target: FrozenTarget, tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = SpeculatorTask(config(tied, scaled), target, torch.float16)
    model = task.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) / 8).copy_(parameter.half().float())
    task.write(dict(model.state_dict()), tmp_path)
    ids = torch.from_numpy(IDS)
    states = target.states(ids)
    with torch.no_grad():
        logits = model(states, ids)
    speculator = open_reader("speculator", tmp_path)
    assert speculator.config == task.config
    for row, place in ((0, 0), (2, 7), (1, logits[0].shape[1] - 1)):
        made = speculator.begin(states[row, place].numpy()[None])
        for stage in range(3):
            made = speculator.advance(stage, made, [int(IDS[row, place + 1 + stage])])
            found = speculator.logits(stage, made)[0]
            np.testing.assert_allclose(found, logits[stage][row, place].numpy(), rtol=1e-4, atol=1e-4)


def test_losses_are_cross_entropies_of_the_tokens_that_each_head_chooses(target: FrozenTarget) -> None:
    torch.manual_seed(1)
    task = SpeculatorTask(config(), target, torch.float16)
    model, ids = task.model(), torch.from_numpy(IDS)
    states = target.states(ids)
    for num_prompt in (0, 8):
        losses = task.losses(model, ids, Windows(IDS.astype(np.int32), num_prompt))
        for stage, logits in enumerate(model(states, ids)):
            assert logits.shape[1] == 20 - 1 - 3
            chosen = [
                -logits[row, place].log_softmax(-1)[ids[row, place + 2 + stage]]
                for row in range(3)
                for place in range(logits.shape[1])
                if place + 2 >= num_prompt
            ]
            torch.testing.assert_close(losses[stage], torch.stack(chosen).mean())


def test_states_are_those_that_logits_are_made_of(target: FrozenTarget) -> None:
    ids = torch.from_numpy(IDS)
    whole = target.model(input_ids=ids).logits
    torch.testing.assert_close(target.model.lm_head(target.states(ids)), whole)


def test_a_training_step_costs_what_the_weights_say(target: FrozenTarget) -> None:
    task = SpeculatorTask(config(), target, torch.float16)
    matrices = [p for name, p in task.model().named_parameters() if p.dim() == 2 and ".emb." not in name]
    assert task.flops_per_token(task.model()) == 6 * sum(p.numel() for p in matrices) + 2 * target.num_parameters


def test_a_target_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((TRAINED / "config.json").read_text())
    with pytest.raises(ModelError, match=r"no \.safetensors file; a target with its weights is required"):
        FrozenTarget(tmp_path, torch.device("cpu"))
