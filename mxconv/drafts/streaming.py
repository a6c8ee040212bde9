"""A draft that is the target over the first and the last positions alone: `streaming:sink=4,window=252`.

Source:
    StreamingLLM (arXiv 2309.17453); MagicDec (arXiv 2408.11049), as a draft.
"""

from mxconv.drafts.kind import CACHE, DraftSpec, Parameter
from mxconv.drafts.variant_kind import VariantKind
from mxconv.package.level_record import StreamingRecord

MOST_POSITIONS = 2**31


class Streaming(VariantKind):
    """Its passes read a constant number of keys and values."""

    name = "streaming"
    record_type = StreamingRecord
    parameters = (Parameter("sink", 0, MOST_POSITIONS), Parameter("window", 1, MOST_POSITIONS), CACHE)

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"sink": spec.parameters.get("sink", 4), "window": spec.parameters.get("window", 252)}


STREAMING = Streaming()
