"""A draft that is the target without some of its attention and MLP parts: `layer-skip:a3-5+m7+8`.

Source:
    Draft & Verify (arXiv 2309.08168).
"""

from mxconv.drafts.kind import CACHE, DraftSpec
from mxconv.drafts.variant_kind import VariantKind
from mxconv.package.level_record import LayerSkipRecord


class LayerSkip(VariantKind):
    """Its subject names the parts, as `mxconv/engine/skipped.py` reads them."""

    name = "layer-skip"
    record_type = LayerSkipRecord
    subject = "LAYERS"
    parameters = (CACHE,)

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"skipped": spec.subject}


LAYER_SKIP = LayerSkip()
