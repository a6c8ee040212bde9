"""mxconv inside transformers: drafts for `model.generate`, and linear layers on our kernels.

    from mxconv.interop.transformers import drafts

    model = AutoModelForCausalLM.from_pretrained("model")
    output = model.generate(**inputs, custom_generate=drafts("package"), max_new_tokens=64)

Needs `pip install mxconv[hf]`.
"""

from mxconv.interop.transformers.bsfp_linear import BSFPLinear
from mxconv.interop.transformers.drafts import Drafts, drafts
from mxconv.interop.transformers.gpu.load_package import load_package
from mxconv.interop.transformers.graphs.graphed import Graphed, graphed
from mxconv.interop.transformers.mxfp4_linear import MXFP4Linear
from mxconv.interop.transformers.quantize import quantize_model

__all__ = ["BSFPLinear", "Drafts", "Graphed", "MXFP4Linear", "drafts", "graphed", "load_package", "quantize_model"]
