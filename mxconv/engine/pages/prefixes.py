"""Full pages that outlive their sequence, found again by the tokens of the text up to their end."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mxconv.engine.pages.slabs import PAGE

ROOT = 0  # what stands before the first page of a text


@dataclass(frozen=True)
class Link:
    """A page of a text, behind one that is known by its number `before`, or ROOT."""

    before: int
    tokens: tuple[int, ...]  # PAGE of them


class Prefixes:
    """A chain of links a text: each page is named by its tokens and by the link before it, to the beginning.

    A dictionary hashes links and then compares them, tokens and all, so that no two texts are ever taken for one.
    Pages are in the order of their last use; of one text the first counts as used after the later ones, so that a
    chain goes from its end.
    """

    def __init__(self) -> None:
        self._numbers = 0  # of links, ever
        self._known: OrderedDict[Link, tuple[int, int]] = OrderedDict()  # to (number, page)
        self._by_page: dict[int, Link] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The pages of the longest known beginning of a text, of whole pages; now used last."""
        links = self._chain(tokens)
        for link in reversed(links):
            self._known.move_to_end(link)
        return [self._known[link][1] for link in links]

    def add(self, tokens: Sequence[int], pages: Sequence[int]) -> list[int]:
        """Make pages known.

        Args:
            tokens: PAGE for each page, from the beginning of the text.
            pages: that hold them.

        Returns:
            The pages by which these tokens are known: others than those given where they were known already.
        """
        links, before = [], ROOT
        for index, page in enumerate(pages):
            link = Link(before, tuple(tokens[index * PAGE : (index + 1) * PAGE]))
            if link not in self._known and page not in self._by_page:
                self._numbers += 1
                self._known[link] = self._numbers, page
                self._by_page[page] = link
            elif link not in self._known:  # known as the page of a text whose beginning was forgotten
                break
            links.append(link)
            before = self._known[link][0]
        for link in reversed(links):
            self._known.move_to_end(link)
        return [*(self._known[link][1] for link in links), *pages[len(links) :]]

    def forget(self, page: int) -> None:
        """A page that is known no more. What stands behind it in a text is not found until it goes too."""
        del self._known[self._by_page.pop(page)]

    def least_recently_used(self) -> Iterator[int]:
        """All pages, that which was used last comes last."""
        return (page for _, page in self._known.values())

    def _chain(self, tokens: Sequence[int]) -> list[Link]:
        links, before = [], ROOT
        for start in range(0, len(tokens) - PAGE + 1, PAGE):
            link = Link(before, tuple(tokens[start : start + PAGE]))
            if link not in self._known:
                break
            links.append(link)
            before = self._known[link][0]
        return links
