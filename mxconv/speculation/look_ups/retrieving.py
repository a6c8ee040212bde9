"""A model's tree and what look-ups retrieve, as one: RASD."""

from collections.abc import Sequence

from mxconv.arrays import F32
from mxconv.speculation.draft import Proposal, TreeDraft
from mxconv.speculation.look_ups.merged import Merged
from mxconv.speculation.sharpness import Sharpened


class Retrieving(Merged):
    """A model whose trees take in those of look-ups, where their paths are likelier than its own.

    A tree that was drawn from the model's distributions is left alone: accepted against them it brings more tokens than
    as certain ones. The level that asks tells look-ups itself what it verified, since it asks them alone too.

    Args:
        model: the draft.
        look_ups: at least one.

    Source:
        RASD: Retrieval-Augmented Speculative Decoding (arXiv 2503.03434), fusion of the retrieved and the drafted tree.
    """

    def __init__(self, model: TreeDraft, look_ups: Sequence[TreeDraft]) -> None:
        super().__init__([model, *look_ups])
        self.model = model

    def grow(
        self, context: Sequence[int], most_depth: int, floors: Sequence[float], floor: float | None = None
    ) -> Proposal:
        own = self.model.grow(context, most_depth, floors, floor)
        if own.distributions:
            self._said = [own, *(Proposal([], parents=[]) for _ in self.drafts[1:])]
            return own
        return self._merge([own, *(draft.grow(context, most_depth, floors) for draft in self.drafts[1:])], floors)

    def count(self, num_asked: int, proposal: Proposal, tokens: Sequence[int]) -> None:
        super().count(num_asked, proposal, tokens)
        if isinstance(self.model, Sharpened):
            self.model.sharpness.learn(self._said[0], tokens)

    def observe(self, context: Sequence[int], proposal: Proposal, logits: F32) -> None:
        self.model.observe(context, proposal, logits)
