"""The kinds of drafts that read hidden states, and whose config.json says what each is made for."""

from mxconv.model.readers.eagle3_config import Eagle3Config
from mxconv.model.readers.speculator_config import SpeculatorConfig
from mxconv.model.readers.spire_config import SpireConfig

CONFIGS: dict[str, type[SpeculatorConfig] | type[SpireConfig] | type[Eagle3Config]] = {
    "speculator": SpeculatorConfig,
    "spire": SpireConfig,
    "eagle3": Eagle3Config,
}
