"""All kinds of drafts, and what `--draft` says: KIND[:SUBJECT][,key=value ...].

checkpoint:PATH_OR_ID   a 16-bit model as it is
package:PATH_OR_ID      a converted one, from its 4 bits; level=NAME names another of its levels
layer-skip:LAYERS       the target without some parts   streaming      the target over a sink and a window
retrieval               its 4-bit copy over these and the pages of the cache that matter most to each token
fewer-experts:NUMBER    the target, every token sent to so many experts
mx2:FILE                the target in 2 bits, below its 4 bits or alone
swift                   the same, found while decoding  early-exit     its first layers, as many as pay
prompt-lookup           what followed here before       ngram:TABLE    what followed in a corpus
speculator:PATH_OR_ID   an MLP speculator, which reads the target's last hidden state
medusa:PATH_OR_ID       Medusa's heads, which read the target's last hidden state
spire:PATH_OR_ID        a SPIRe draft, which reads the target's hidden states of some layers
eagle3:PATH_OR_ID       an EAGLE-3 draft head, which reads the states of a few of the target's layers
dflash:PATH_OR_ID       a DFlash head, which makes a block of tokens of such states in one pass
gemma4-assistant:PATH_OR_ID  the assistant of a Gemma 4, which reads its target's keys and values
mtp                     the checkpoint's own MTP layer, which reads the target's last hidden state
FILE.py:CLASS           a kind of somebody else's, see `plug_in.py`
"""

import re

from mxconv.drafts.dflash import DFLASH
from mxconv.drafts.eagle3 import EAGLE3
from mxconv.drafts.gemma4_assistant import GEMMA4_ASSISTANT
from mxconv.drafts.kind import COMMON, DraftKind, DraftSpec, LookUpKind, Value
from mxconv.drafts.medusa import MEDUSA
from mxconv.drafts.model import CHECKPOINT, PACKAGE
from mxconv.drafts.mtp import MTP
from mxconv.drafts.ngram import NGRAM
from mxconv.drafts.plug_in import load_plug_in, plug_in_names
from mxconv.drafts.prompt_lookup import PROMPT_LOOKUP
from mxconv.drafts.sparse_views import RETRIEVAL, STREAMING
from mxconv.drafts.speculator import SPECULATOR
from mxconv.drafts.spire import SPIRE
from mxconv.drafts.target_views import EARLY_EXIT, FEWER_EXPERTS, LAYER_SKIP, SELF_DRAFT, SWIFT, TARGET
from mxconv.drafts.two_bit_draft import MX2
from mxconv.errors import MxconvError
from mxconv.package.level_record import LevelRecord
from mxconv.package.removed import REMOVED_KINDS

ALL: tuple[DraftKind, ...] = (
    CHECKPOINT,
    PACKAGE,
    MX2,
    LAYER_SKIP,
    SWIFT,
    EARLY_EXIT,
    STREAMING,
    RETRIEVAL,
    FEWER_EXPERTS,
    PROMPT_LOOKUP,
    NGRAM,
    SPECULATOR,
    MEDUSA,
    SPIRE,
    EAGLE3,
    DFLASH,
    GEMMA4_ASSISTANT,
    MTP,
)


class KindTable(dict[str, DraftKind]):
    """Kinds by the word of a SPEC; plug-ins are loaded when they are named."""

    def __missing__(self, word: str) -> DraftKind:
        """Load a plug-in.

        Raises:
            KeyError: the word names none.
            MxconvError: it cannot be loaded, or its level has the name of another kind's.
        """
        kind = load_plug_in(word)
        if kind is None:
            raise KeyError(word)
        name = kind.level_kind or kind.name
        known = LEVEL_KINDS.setdefault(name, kind)
        if type(known) is not type(kind):
            raise MxconvError(f"--draft {word}: its name is {name!r}, which another kind has. Give it another name.")
        self[word] = known
        return known


KINDS = KindTable({kind.name: kind for kind in ALL})
SPEC = re.compile(r"(?P<kind>[^:,]*\.py:[^,:]*|[^:,]*)(?P<rest>.*)", re.DOTALL)
LEVEL_KINDS: dict[str, DraftKind] = {kind.level_kind or kind.name: kind for kind in (TARGET, SELF_DRAFT, *ALL)}


def kind_of(record: LevelRecord) -> DraftKind:
    """The kind of a level of a manifest."""
    return LEVEL_KINDS[record.kind]


def is_look_up(record: LevelRecord) -> bool:
    """Whether a level has no model."""
    return isinstance(kind_of(record), LookUpKind)


def parse_draft(text: str) -> DraftSpec:
    """Parse a draft specification.

    Raises:
        MxconvError: an unknown or a removed kind, an unknown parameter, or a value out of range.
    """
    match = SPEC.fullmatch(text)
    assert match is not None, "any text fits"
    name, rest = match["kind"], match["rest"]
    try:
        kind = KINDS[name]
    except KeyError:
        if name in REMOVED_KINDS:
            raise MxconvError(
                f"--draft {text}: kind {name!r}, which was removed; another kind is required. {REMOVED_KINDS[name]}."
            ) from None
        known = [each.name + (f":{each.subject}" if each.subject else "") for each in ALL]
        listed = ", ".join([*known, *plug_in_names(), "FILE.py:CLASS"])
        raise MxconvError(f"--draft {text}: kind {name!r}; one of {listed} is required.") from None
    parts = rest[1:].split(",") if rest[1:] else []
    subject = ""
    if kind.subject:
        subject = parts.pop(0) if parts and rest[0] == ":" else ""
        if not subject:
            raise MxconvError(f"--draft {text}: names no {kind.subject}; {name}:{kind.subject} is required.")
    allowed = {each.name: each for each in (*COMMON, *kind.parameters)}
    values: dict[str, Value] = {}
    try:
        for part in parts:
            key, _, value = part.partition("=")
            if key not in allowed:
                raise ValueError(f"parameter {key!r}; one of {', '.join(allowed)} is required.")
            values[key] = allowed[key].parse(value)
        common = {each.name: values.pop(each.name, None) for each in COMMON}
        spec = DraftSpec(name, subject, **common, parameters=values)  # type: ignore[arg-type]  # as COMMON parses them
        kind.check(spec)
    except ValueError as error:
        raise MxconvError(f"--draft {text}: {error}") from error
    return spec
