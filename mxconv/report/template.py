"""Pages from templates/. Every value that is filled in is escaped; style and scripts are mxconv's own files."""

from importlib.resources import files
from typing import Any


def render(name: str, **values: Any) -> str:
    """The text of a page; a value that a template asks for and does not get is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # imported here: only pages need it

    folder = files("mxconv.report").joinpath("templates")
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda part: folder.joinpath(part).read_text("utf-8")),
    )
    return environment.get_template(name).render(**values)
