"""Levels whose draft skips parts of the target, as the text asks for."""

from tiny_levels import decoder_of

from mxconv.drafts.kind import LoadedLevel
from mxconv.drafts.kinds import kind_of, parse_draft, record_of
from mxconv.speculation.selection import Selection
from mxconv.text.distribution import Sampling

COUPLED = Selection(Sampling(0.9), "coupled", 3)
PROMPT = [3, 1, 4, 1, 5, 9, 2]
SIZES = {"num_layers": 6, "max_position_embeddings": 400}


def level_of(spec: str, target: LoadedLevel, name: str = "draft") -> LoadedLevel:
    found = record_of(parse_draft(spec), name)
    decoder = decoder_of(target)
    return LoadedLevel(found, kind_of(found).of_decoder(decoder, found))
