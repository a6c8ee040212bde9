"""A question to the cost models, of a config.json."""

from published.model_cards import LLAMA_3_1_8B

from mxconv.arch.fields import Fields
from mxconv.arch.model_sizes import ModelSizes
from mxconv.cost.answers import Question
from mxconv.cost.hardware import open_hardware
from mxconv.cost.levels import strategies_of


def config_question(config: dict[str, object] = LLAMA_3_1_8B, name: str = "h100-sxm") -> Question:
    architecture = ModelSizes.from_fields(Fields(config, "config.json"))
    return Question(architecture, strategies_of(architecture), open_hardware(name))
