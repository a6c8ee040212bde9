"""All kinds of drafts, and what `--draft` says: KIND[:SUBJECT][,key=value ...].

checkpoint:PATH_OR_ID   a 16-bit model as it is
package:PATH_OR_ID      a converted one, from its 4 bits; level=NAME names another of its levels
streaming               the target over a sink and a window
retrieval               its 4-bit copy over these and the pages of the cache that matter most to each token
fewer-experts:NUMBER    the target, every token sent to so many experts
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

# ruff: noqa: N811 - every kind is a constant of its file

import re

from mxconv.drafts.kind import COMMON, DraftKind, DraftSpec, Value
from mxconv.drafts.plug_in import load_plug_in, plug_in_names
from mxconv.errors import MxconvError
from mxconv.package.level_record import LevelRecord
from mxconv.package.removed import REMOVED_KINDS

WORDS = (
    "checkpoint", "package", "streaming", "retrieval", "fewer-experts",
    "prompt-lookup", "ngram", "speculator", "medusa", "spire", "eagle3", "dflash", "gemma4-assistant", "mtp",
)  # fmt: skip


def kind_named(word: str) -> DraftKind:
    """A kind of this room by its word, or by that of a manifest; its file is imported when it is first named."""
    kind: DraftKind
    match word:
        case "target":
            from mxconv.drafts.target_views import TARGET as kind
        case "self-draft":
            from mxconv.drafts.target_views import SELF_DRAFT as kind
        case "checkpoint":
            from mxconv.drafts.model import CHECKPOINT as kind
        case "package" | "model":
            from mxconv.drafts.model import PACKAGE as kind
        case "fewer-experts":
            from mxconv.drafts.target_views import FEWER_EXPERTS as kind
        case "streaming":
            from mxconv.drafts.sparse_views import STREAMING as kind
        case "retrieval":
            from mxconv.drafts.sparse_views import RETRIEVAL as kind
        case "prompt-lookup":
            from mxconv.drafts.prompt_lookup import PROMPT_LOOKUP as kind
        case "ngram":
            from mxconv.drafts.ngram import NGRAM as kind
        case "speculator":
            from mxconv.drafts.speculator import SPECULATOR as kind
        case "medusa":
            from mxconv.drafts.medusa import MEDUSA as kind
        case "spire":
            from mxconv.drafts.spire import SPIRE as kind
        case "eagle3":
            from mxconv.drafts.eagle3 import EAGLE3 as kind
        case "dflash":
            from mxconv.drafts.dflash import DFLASH as kind
        case "gemma4-assistant":
            from mxconv.drafts.gemma4_assistant import GEMMA4_ASSISTANT as kind
        case "mtp":
            from mxconv.drafts.mtp import MTP as kind
        case _:
            raise KeyError(word)
    return kind


class KindTable(dict[str, DraftKind]):
    """Kinds by the word of a SPEC; each is imported when it is named, plug-ins too."""

    def __missing__(self, word: str) -> DraftKind:
        """Load a kind.

        Raises:
            KeyError: the word names none.
            MxconvError: a plug-in cannot be loaded, or its level has the name of another kind's.
        """
        self[word] = kind_named(word) if word in WORDS else _plugged_in(word)
        return self[word]


KINDS = KindTable()
PLUGGED: dict[str, DraftKind] = {}  # plug-ins by the kind of their level


def _plugged_in(word: str) -> DraftKind:
    kind = load_plug_in(word)
    if kind is None:
        raise KeyError(word)
    name = kind.level_kind or kind.name
    is_ours = name in (*WORDS, "target", "self-draft", "model")
    known = kind if is_ours else PLUGGED.setdefault(name, kind)
    if is_ours or type(known) is not type(kind):
        raise MxconvError(f"--draft {word}: its name is {name!r}, which another kind has. Give it another name.")
    return known


def all_kinds() -> list[DraftKind]:
    """All kinds of this room that a SPEC names."""
    return [KINDS[word] for word in WORDS]


SPEC = re.compile(r"(?P<kind>[^:,]*\.py:[^,:]*|[^:,]*)(?P<rest>.*)", re.DOTALL)


def kind_of(record: LevelRecord) -> DraftKind:
    """The kind of a level of a manifest."""
    return PLUGGED.get(record.kind) or kind_named(record.kind)


def is_look_up(record: LevelRecord) -> bool:
    """Whether a level has no model."""
    return kind_of(record).is_look_up


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
        known = [each.name + (f":{each.subject}" if each.subject else "") for each in all_kinds()]
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
