"""HTML pages that need no other file, no script and no network: sections of facts, tables and charts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from mxconv.cost.surfaces import Surface
from mxconv.report.charts import Chart, picture_uri
from mxconv.report.tables import TextTable

FOLDER = files("mxconv.report").joinpath("templates")


@dataclass
class PageSection:
    """A part of a page.

    Args:
        title: its heading; an empty one has none.
        lines: paragraphs below the heading.
        facts: figures by name, shown as tiles.
        charts: drawn as one picture.
        charts_title: above that picture, and its description for those who do not see it.
        tables: with their titles.
    """

    title: str = ""
    lines: Sequence[str] = ()
    facts: dict[str, str] = field(default_factory=dict)
    charts: Sequence[Chart | Surface] = ()
    charts_title: str = ""
    tables: Sequence[TextTable] = ()

    @property
    def picture(self) -> str:
        """The charts as a data URI."""
        return picture_uri(self.charts_title, self.charts)


def render_page(title: str, subtitles: Sequence[str], notes: Sequence[str], sections: Sequence[PageSection]) -> str:
    """The text of a page; every value is escaped, and a value that the template lacks is an error."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined  # imported here: only pages need it

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda part: FOLDER.joinpath(part).read_text("utf-8")),
    )
    return environment.get_template("page.html.j2").render(
        title=title, subtitles=subtitles, notes=notes, sections=sections
    )
