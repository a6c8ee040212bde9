"""A draft that is the target with fewer experts a token: `fewer-experts:2`."""

from mxconv.drafts.kind import CACHE, DraftSpec, OpenedDraft, OpenTarget
from mxconv.drafts.variant_kind import VariantKind
from mxconv.engine.experts import check_fewer


class FewerExperts(VariantKind):
    """Every token is sent to as many experts as its subject says, from 0 on."""

    name = "fewer-experts"
    subject = "NUMBER"
    parameters = (CACHE,)

    def check(self, spec: DraftSpec) -> None:
        if not (spec.subject.isdecimal() and spec.subject.isascii() and len(spec.subject) < 6):
            raise ValueError(f"{spec.subject!r} experts; a number from 0 to 99999 is required.")

    def members(self, spec: DraftSpec) -> dict[str, object]:
        return {"experts": int(spec.subject)}

    def open(self, spec: DraftSpec, target: OpenTarget) -> OpenedDraft:
        if target.config is not None:
            check_fewer(target.config, int(spec.subject), f"--draft {spec.kind}:{spec.subject}")
        return OpenedDraft(spec, spec.kind)


FEWER_EXPERTS = FewerExperts()
