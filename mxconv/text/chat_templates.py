"""The places where a model keeps its chat templates: the first place that has a default one decides."""

from collections.abc import Iterator
from pathlib import Path

from mxconv.arch.fields import Fields
from mxconv.checkpoint.folder import TEMPLATES_FOLDER
from mxconv.checkpoint.regular_file import check_regular_file, open_file
from mxconv.checkpoint.tokenizer_settings import CONFIG_FILE
from mxconv.errors import ModelError

MAX_TEMPLATE_BYTES = 1_000_000  # the longest of known models have 20,000
TEMPLATE_FILE = "chat_template.jinja"
JSON_FILES = (CONFIG_FILE, "chat_template.json", "processor_config.json")
FORMS = "a text, or a list of objects with a name and a template, or an object of templates by name, is required"


def read_templates(folder: Path) -> tuple[dict[str, str], str]:
    """The chat templates of a model by name, and what messages call their place; none where it has none.

    A single one is the default, whatever its name.

    Raises:
        ModelError: one is too long or no text, or there are several and none of them is the default.
        CheckpointError: a file cannot be read.

    Source:
        transformers' AutoTokenizer, which reads the .jinja files before tokenizer_config.json; its processors, which
        read the other two.
    """
    templates: dict[str, str] = {}
    name = str(folder)
    for place, found in _places(folder):
        templates, name = found | templates, place if found else name
        if "default" in templates:
            break
    for label, source in templates.items():
        check_length(name if label == "default" else f"{name}: {label}", len(source.encode(errors="replace")))
    if len(templates) == 1:
        templates = dict.fromkeys(["default"], *templates.values())
    if templates and "default" not in templates:
        raise ModelError(
            f"{name}: holds {', '.join(map(repr, templates))}; one of several templates must be called 'default'. Name "
            "one so."
        )
    return templates, name


def check_length(name: str, num_bytes: int) -> None:
    """Raises ModelError where a template is longer than any of a known model."""
    if num_bytes > MAX_TEMPLATE_BYTES:
        raise ModelError(
            f"{name}: {num_bytes:,} bytes long; at most {MAX_TEMPLATE_BYTES:,} are read. "
            "Take the file that belongs to the weights."
        )


def _places(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each place and its templates by name, first the one that wins."""
    paths = {path.stem: path for path in sorted((folder / TEMPLATES_FOLDER).glob("*.jinja"))}
    if (path := folder / TEMPLATE_FILE).is_file():
        paths["default"] = path
    yield str(path if "default" in paths else folder / TEMPLATES_FOLDER), {n: _read(p) for n, p in paths.items()}
    for file in JSON_FILES:
        if (folder / file).is_file():
            yield f"{folder / file}: chat_template", _named(Fields.read(folder / file))


def _read(path: Path) -> str:
    check_length(str(path), check_regular_file(path))
    with open_file(path) as file:
        source = file.read(MAX_TEMPLATE_BYTES)
    try:
        return source.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{path}: byte {error.start} is no UTF-8; text is required. Take the file that belongs to the weights."
        ) from error


def _named(config: Fields) -> dict[str, str]:
    """The member `chat_template`, in any of its forms; null is none."""
    value = config.values.get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        value = [(entry.get("name"), entry.get("template", False)) for entry in value]
    elif isinstance(value, dict) or value is None:
        value = list((value or {}).items())
    else:
        config.reject("chat_template", FORMS)
    if not all(isinstance(name, str) and (source is None or isinstance(source, str)) for name, source in value):
        config.reject("chat_template", FORMS)
    return {name: source for name, source in value if source is not None}
