"""Kinds of drafts that are no part of mxconv: from a file, or from another distribution's entry point.

    mxconv generate PACKAGE --draft my_draft.py:MyKind,num_draft_tokens=4
    [project.entry-points."mxconv.drafts"]
    my-draft = "my_module:MyKind"

A plug-in runs as part of mxconv, so only the command line and Python name one: no manifest does.
"""

import re
import sys
from hashlib import sha256
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isclass
from pathlib import Path

from mxconv.drafts.kind import DraftKind
from mxconv.errors import MxconvError

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
