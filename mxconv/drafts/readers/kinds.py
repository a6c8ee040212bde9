"""The kinds of drafts that read hidden states, and whose config.json says what each is made for."""

from collections.abc import Mapping

from mxconv.drafts.readers.eagle3_config import Eagle3Config
from mxconv.drafts.readers.mlp_speculator import SpeculatorConfig
from mxconv.drafts.readers.spire_layers import SpireConfig

CONFIGS: dict[str, type[SpeculatorConfig] | type[SpireConfig] | type[Eagle3Config]] = {
    "speculator": SpeculatorConfig,
    "spire": SpireConfig,
    "eagle3": Eagle3Config,
}


def kind_of(config: Mapping[str, object]) -> str | None:
    """The kind of a draft whose config.json is given; None of anything else."""
    if config.get("speculators_model_type") == "eagle3":
        return "eagle3"
    return {"mlp_speculator": "speculator", "spire": "spire"}.get(str(config.get("model_type")))
