"""The kinds of drafts that read hidden states, and whose config.json says what each is made for."""

from mxconv.model.readers.eagle3_config import Eagle3Config
from mxconv.model.readers.speculator_config import SpeculatorConfig

CONFIGS: dict[str, type[SpeculatorConfig] | type[Eagle3Config]] = {
    "speculator": SpeculatorConfig,
    "eagle3": Eagle3Config,
}
