"""Which draft of a package runs on a GPU, and with which numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from mxconv.drafts.draft_spec import DEFAULT_CONFIDENCE, DEFAULT_NUM_DRAFT_TOKENS
from mxconv.errors import ModelError
from mxconv.gpu.device import checked_device
from mxconv.interop.transformers.proposer import Proposers
from mxconv.package.manifest import read_manifest


def gpu_draft(
    root: Path,
    levels: Sequence[str] | None,
    num_draft_tokens: Sequence[int] | Literal["auto"] | None,
    confidence: Sequence[float] | None,
    device: str | torch.device,
) -> tuple[Proposers, int | None]:
    """The draft that runs on a GPU, and the size of its vocabulary, None where the package names none.

    Args:
        root: the package's folder.
        levels: None, or the self-draft's name.
        num_draft_tokens: one number; None for the package's.
        confidence: likewise.
        device: as for `checked_device`.

    Raises:
        MxconvError: no such device, the package has no self-draft, or arguments are for other drafts.
    """
    found = checked_device(device)
    from mxconv.interop.transformers.gpu.self_draft import SelfDraft

    manifest = read_manifest(root)
    record = next((level for level in manifest.levels if level.kind == "self-draft"), None)
    if record is None or (levels is not None and list(levels) != [record.name]):
        named = "none" if record is None else record.name
        raise ModelError(
            f"{root}: drafts {', '.join(levels or ['all'])} on {found}; the 4-bit self-draft ({named}) is the one that "
            "runs there. Name it alone, or leave device out."
        )
    if num_draft_tokens == "auto" or any(len(each) != 1 for each in (num_draft_tokens, confidence) if each is not None):
        raise ModelError(
            f"drafts: num_draft_tokens={num_draft_tokens!r}, confidence={confidence!r} on {found}; one number of each "
            "is required, for the one draft. Leave them out for the package's."
        )
    length = num_draft_tokens[0] if num_draft_tokens else record.num_draft_tokens or DEFAULT_NUM_DRAFT_TOKENS
    threshold = confidence[0] if confidence else record.confidence
    draft = SelfDraft(root, record, found, length, DEFAULT_CONFIDENCE if threshold is None else threshold)
    return draft, None if manifest.tokenizer is None else manifest.tokenizer.vocab_size
