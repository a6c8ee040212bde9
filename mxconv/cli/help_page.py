"""The help page of a command: the options that people use first, and the others in named groups.

`GROUPS` says which option belongs where, by the names of parameters; `rich_help_panel` wins where commands differ.
"""

import re
from typing import Any

from typer.core import TyperCommand

FIRST, LOAD = "Options", "Load and limits"
GROUPS = {
    "Prompts and answers": "stop template_var json_schema regex grammar special_tokens_in_content",
    "Drafts": "draft levels tree num_draft_tokens confidence accept draft_weights calibration_tokens head_screen",
    "Sampling": "temperature top_k top_p min_p repetition_penalty presence_penalty frequency_penalty logit_bias seed",
    "Format": "scale_rule lm_head skip outliers segments residual_bits on_nonfinite max_shard_bytes",
    "Network": "heads inner_dim tie_weights scale_input layers block sink window past_memory random_start no_feedback "
    "draft_vocab_size hidden_size intermediate_size",
    "Training": "loss batch_tokens length learning_rate mixed_precision save_every",
    LOAD: "batch kv_bytes max_sequences max_queue max_prompt_tokens max_body_bytes timeout tokens context",
    "Measurement": "check stats trace samples ablation activations out_features in_features",
    "Machine": "kernel threads kv_dtype weights workers memory device",
    "Attestation": "attestation identity public_key certificate_chain",
    "Pages and pictures": "plot figure roofline html sweep",
    "General": "revision dry_run write force json_output help",
}
GROUP_OF = {name: group for group, names in GROUPS.items() for name in names.split()}
TYPES = {"int": "N", "int range": "N", "float": "X", "float range": "X", "path": "PATH", "str": "TEXT"}


class CommandPage(TyperCommand):
    """A command whose help shows options in groups, arguments in capitals and no types of Python, as plain text."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for parameter in self.params:
            if parameter.param_type_name == "argument" and parameter.metavar is None:
                name = str(parameter.name).upper()
                parameter.metavar = name if parameter.nargs == 1 else name.removesuffix("S")

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line, with SOURCE for an argument that must be there."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and groups of options, each under its heading."""
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", FIRST, *GROUPS)}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            if parameter.param_type_name == "argument":
                sections["Arguments"].append((f"{parameter.metavar}{'...' * (parameter.nargs != 1)}", record[1]))
            else:
                sections[group_of(parameter)].append((re.sub("<(.+)>", _metavar, record[0]), record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def group_of(option: Any) -> str:
    """The heading under which an option is shown."""
    return option.rich_help_panel or GROUP_OF.get(option.name, FIRST)


def _metavar(found: re.Match[str]) -> str:
    """The placeholder of a value: N for `<int>`, PATH for `<list[path]>`, the names of a choice."""
    name = found[1].removeprefix("list[").removesuffix("]")
    return TYPES.get(name.lower(), name)
