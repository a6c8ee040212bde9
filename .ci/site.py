"""Hooks of mkdocs.yml: pages of docs/ link to files of the whole repository, on a code host and in the site alike.

docs/ is the site's root. A file elsewhere in the repository that a page links to becomes a file of the site, under its
own path: formats/ as pages, all others as they are.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")
ROW = re.compile(r"^\|.*$", re.MULTILINE)
CODE = re.compile(r"`[^`]*`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to outside of docs/, and what is linked to from there."""
    texts = [(ROOT / "docs" / file.src_uri, file.src_uri) for file in files.documentation_pages()]
    while texts:
        path, uri = texts.pop()
        for link, _ in LINK.findall(path.read_text("utf-8")):
            target = in_repository(uri, link)
            if files.get_file_from_path(in_site(target)) is None:
                added = File.generated(config, in_site(target), abs_src_path=str(ROOT / target))
                files.append(added)
                if added.is_documentation_page():
                    texts.append((ROOT / target, added.src_uri))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at places in the site; in tables a pipe within code needs no backslash here."""
    folder = posixpath.dirname(page.file.src_uri) or "."

    def moved(match: re.Match[str]) -> str:
        target = in_site(in_repository(page.file.src_uri, match[1]))
        return f"]({posixpath.relpath(target, folder)}{match[2] or ''})"

    def plain(row: re.Match[str]) -> str:
        return CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])

    return ROW.sub(plain, LINK.sub(moved, markdown))


def in_repository(uri: str, link: str) -> str:
    """The path of what a link leads to, seen from a page of the site."""
    folder = "" if (ROOT / uri).is_file() and not (ROOT / "docs" / uri).is_file() else "docs"
    return posixpath.normpath(posixpath.join(folder, posixpath.dirname(uri), link))


def in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    return path.removeprefix("docs/")
