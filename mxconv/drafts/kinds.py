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
FILE.py:CLASS           a kind of somebody else's: a plug-in

A plug-in is no part of mxconv: it is in a file, or in another distribution with an entry point.

    mxconv generate PACKAGE --draft my_draft.py:MyKind,num_draft_tokens=4
    [project.entry-points."mxconv.drafts"]
    my-draft = "my_module:MyKind"

It runs as part of mxconv, so only the command line and Python name one: no manifest does.
"""

# ruff: noqa: N811 - every kind is a constant of its file
import re
import sys
from hashlib import sha256
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isclass
from pathlib import Path

from mxconv.drafts.kind import COMMON, DraftKind, DraftSpec, Value
from mxconv.errors import MxconvError
from mxconv.package.level_record import LevelRecord
from mxconv.package.sealed_file import REMOVED_KINDS

GROUP = "mxconv.drafts"
FILE_AND_CLASS = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)")


def plug_in_names() -> list[str]:
    """Return the words of kinds that installed distributions bring."""
    return sorted(entry.name for entry in entry_points(group=GROUP))


def load_plug_in(word: str) -> DraftKind | None:
    """Return the kind of FILE.py:CLASS or of an entry point's name; None where the word is neither.

    Raises:
        MxconvError: the file is missing or fails, or what is named there is no subclass of `DraftKind`.
    """
    try:
        if match := FILE_AND_CLASS.fullmatch(word):
            found = _class_of(Path(match["file"]), match["name"])
        else:
            entry = next(iter(entry_points(group=GROUP, name=word)), None)
            if entry is None:
                return None
            found = entry.load()
    except MxconvError:
        raise
    except Exception as error:  # whatever the code of somebody else raises
        raise MxconvError(f"--draft {word}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isclass(found) and issubclass(found, DraftKind)):
        raise MxconvError(
            f"--draft {word}: is {found!r}; a subclass of mxconv.drafts.kind.DraftKind is required, such as LookUpKind."
        )
    return found()


def _class_of(file: Path, name: str) -> object:
    """A class of a Python file, which is imported once by its absolute path."""
    if not file.is_file():
        raise MxconvError(f"--draft {file}:{name}: no such file; a Python file is required before the colon.")
    path = file.resolve()
    module_name = f"mxconv_plug_in_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = spec_from_file_location(module_name, path)
        assert spec is not None and spec.loader is not None, "its name ends in .py"
        module = module_from_spec(spec)
        sys.modules[module_name] = module  # dataclasses look their module up there
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[module_name]
            raise
    if not hasattr(module, name):
        raise MxconvError(f"--draft {file}:{name}: the file has no {name}; the name of a class in it is required.")
    found: object = getattr(module, name)
    return found


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
            from mxconv.drafts.target_views import STREAMING as kind
        case "retrieval":
            from mxconv.drafts.target_views import RETRIEVAL as kind
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
