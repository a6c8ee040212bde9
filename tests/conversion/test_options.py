from typing import Any

import pytest

from mxconv.conversion.options import QuantizeOptions
from mxconv.errors import MxconvError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "int4"}, "--codec: 'int4'; one of mxfp4, bsfp is required."),
        ({"scale_rule": "max"}, "--scale-rule: 'max'; one of ocp, even, ceil, ggml, mse is required."),
        ({"lm_head": "drop"}, "--lm-head: 'drop'; one of int8, exact, quantize, keep is required."),
        ({"outliers": "clip"}, "--outliers: 'clip'; one of exact, rescale is required."),
        ({"segments": "lloyd"}, "--segments: 'lloyd'; one of fitted, paper is required."),
        ({"on_nonfinite": "zero"}, "--on-nonfinite: 'zero'; one of error, keep is required."),
        ({"dtype": "fp8"}, "--dtype: 'fp8'; one of bf16, fp16 is required."),
        ({"target": "upload"}, "--target: 'upload'; one of include, reference is required."),
        ({"codec": "bsfp", "residual_bits": 7}, "--residual-bits: 7; one of 8, 9, 10, 11, 12 is required."),
        ({"max_shard_bytes": 0}, "--max-shard-bytes: 0; at least 1 is required."),
        ({"num_threads": 0}, "--threads: 0; at least 1 is required."),
        (
            {"codec": "bsfp", "scale_rule": "mse"},
            "--scale-rule: 'mse' with --codec bsfp; only mxfp4 has this option. Leave it out, or use --codec mxfp4.",
        ),
        (
            {"codec": "bsfp", "target": "reference"},
            "--target: 'reference' with --codec bsfp; only mxfp4 has this option. Leave it out, or use --codec mxfp4.",
        ),
        (
            {"outliers": "rescale"},
            "--outliers: 'rescale' with --codec mxfp4; only bsfp has this option. Leave it out, or use --codec bsfp.",
        ),
        (
            {"codec": "bsfp", "lm_head": "int8"},
            "--lm-head: 'int8' with --codec bsfp; only mxfp4 has this option. Leave it out, or use --codec mxfp4.",
        ),
        (
            {"lm_head": "exact"},
            "--lm-head: 'exact' with --codec mxfp4; only bsfp has this option. Leave it out, or use --codec bsfp.",
        ),
        ({"segments": "paper"}, "--segments: 'paper' with --codec mxfp4; only bsfp has this option."),
        ({"residual_bits": 8}, "--residual-bits: 8 with --codec mxfp4; only bsfp has this option."),
        (
            {"codec": "bsfp", "segments": "paper", "residual_bits": 8},
            "--residual-bits: 8 with --segments paper, whose width is fixed. Leave it out.",
        ),
    ],
)
def test_an_option_out_of_range_or_of_the_other_codec_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MxconvError) as caught:
        QuantizeOptions(**options)
    assert message in str(caught.value)


def test_a_target_is_included_from_a_local_source_and_referenced_on_the_hub() -> None:
    assert QuantizeOptions().record(is_local=True).target == "include"
    assert QuantizeOptions().record(is_local=False).target == "reference"
    assert QuantizeOptions(target="include").record(is_local=False).target == "include"
    assert QuantizeOptions(codec="bsfp").record(is_local=False).target == "include"  # bit sharing: there is no other
