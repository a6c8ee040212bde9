"""What `generate` may be asked for where the rounds are ours."""

from typing import TYPE_CHECKING

from mxconv.errors import ModelError

if TYPE_CHECKING:
    from transformers import GenerationConfig


def check_arguments(config: "GenerationConfig") -> None:
    """Refuse what a text that grows by rounds does not have.

    Raises:
        ModelError: beams, or attentions and hidden states in the output.
    """
    if (config.num_beams or 1) > 1:
        raise ModelError(
            f"generate: num_beams={config.num_beams}; drafts serve greedy decoding and sampling. Use one beam."
        )
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name, False):
            raise ModelError(f"generate: {name}=True; drafts do not collect these. Leave it out.")
