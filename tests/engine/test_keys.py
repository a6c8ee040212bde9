"""A family's keys of config.json are its own: a key that transformers ignores there changes nothing for us either."""

import json
from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import pytest

from mxconv.arch.families.registry import describe_values
from mxconv.arch.fields import Fields
from mxconv.errors import ModelError

checkpoints = pytest.importorskip("family_checkpoints", reason="torch and transformers make these checkpoints")
import torch  # noqa: E402 (where it is missing, the line above skips)
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

NAMES = [name for name, own in checkpoints.FAMILIES.items() if "text_config" not in own]
ODD = [3, 0.37, "odd"]
OF_MTP = {"num_nextn_predict_layers", "mtp_num_hidden_layers"}  # of modules that transformers leaves out


class Recorded(dict[str, Any]):
    """An object that notes which of its keys it is asked for."""

    def __init__(self, values: dict[str, Any], asked: set[str]) -> None:
        super().__init__(values)
        self.asked = asked

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


def keys_that_we_read(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Of config.json itself, not of its sections."""
    asked: set[str] = set()
    plain: Callable[..., None] = Fields.__init__

    def recording(self: Fields, values: dict[str, Any], name: str) -> None:
        plain(self, Recorded(values, asked) if name == "config.json" else values, name)

    with monkeypatch.context() as patch:
        patch.setattr(Fields, "__init__", recording)
        describe_values(values)
    return asked


class Theirs:
    """A family in transformers: its class of configurations, a config.json, and a model of random weights."""

    def __init__(self, name: str) -> None:
        config = AutoConfig.for_model(**(checkpoints.SIZES | checkpoints.FAMILIES[name]))
        self.kind = type(config)
        self.values: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
        if self.values.get("head_dim", 0) is None:  # as published files leave it out
            del self.values["head_dim"]
        self.values.pop("time_step_limit", None)  # transformers does not read an infinity that it wrote

    def is_declared(self, key: str) -> bool:
        return key in self.kind.__dataclass_fields__ or key in self.kind.attribute_map

    def ignores(self, key: str, value: object) -> bool:
        """Whether a file with this key makes the same model, by its logits; one that it refuses makes none."""
        try:
            logits = self._logits(self.values | {key: value}, self.model.state_dict())
        except Exception:
            return False
        return bool((logits == self.logits).all())

    @cached_property
    def model(self) -> Any:
        torch.manual_seed(3)
        return self._make(self.values)

    @cached_property
    def logits(self) -> np.ndarray:
        return self._logits(self.values, self.model.state_dict())

    def _logits(self, values: dict[str, Any], state: dict[str, Any]) -> np.ndarray:
        model = self._make(values)
        model.load_state_dict(state)
        with torch.no_grad():
            logits: np.ndarray = model(torch.arange(20)[None], use_cache=False).logits.numpy()
        return logits

    def _make(self, values: dict[str, Any]) -> Any:
        config = self.kind.from_dict(deepcopy(values))
        return AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def is_as_before(values: dict[str, Any], changes: dict[str, Any]) -> bool:
    try:
        return describe_values(deepcopy(values | changes)) == describe_values(values)
    except ModelError:
        return False


@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_transformers_ignores_in_a_family_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    theirs = Theirs(name)
    read = keys_that_we_read(theirs.values, monkeypatch)
    assert {"num_hidden_layers", "hidden_size"} <= read
    for key in sorted(read - OF_MTP):
        for value in ODD:
            if not theirs.is_declared(key) and not is_as_before(theirs.values, {key: value}):
                assert not theirs.ignores(key, value), f"{key} of {value!r}"


ALIASES = {
    "gpt2": {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    | {"n_positions": "max_position_embeddings"},
    "mixtral": {"num_local_experts": "num_experts"},
    "gpt_oss": {"num_local_experts": "num_experts"},
    "qwen3_moe": {"num_local_experts": "num_experts"},
    "deepseek_v3": {"n_routed_experts": "num_local_experts"},
    "glm4_moe": {"n_routed_experts": "num_local_experts"},
    "granitemoehybrid": {"layer_types": "layers_block_type"},
}


@pytest.mark.parametrize("name", ALIASES)
def test_names_that_transformers_takes_for_one_another_are_read_as_one(name: str) -> None:
    theirs = Theirs(name)
    for key, alias in ALIASES[name].items():
        assert {key, alias} & set(theirs.kind.attribute_map)
        other = {alias if each == key else each: value for each, value in theirs.values.items()}
        assert (alias in other) and (key not in other)
        assert theirs.kind.from_dict(deepcopy(other)).to_dict() == theirs.kind.from_dict(theirs.values).to_dict()
        assert describe_values(other) == describe_values(theirs.values), alias
