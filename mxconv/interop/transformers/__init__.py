"""mxconv inside transformers: drafts for `model.generate`, and a package's weights in a model on a GPU.

    from mxconv.interop.transformers import drafts

    model = AutoModelForCausalLM.from_pretrained("model")
    output = model.generate(**inputs, custom_generate=drafts("package"), max_new_tokens=64)

Needs `pip install '.[hf]'`; on a GPU `.[gpu]` too, see docs/hardware.md.
"""

from mxconv.gpu.load_package import load_package
from mxconv.interop.transformers.generate_drafts import Drafts, drafts
from mxconv.interop.transformers.quantize_model import quantize_model

__all__ = ["Drafts", "drafts", "load_package", "quantize_model"]
