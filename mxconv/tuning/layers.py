"""Which layers of the target to skip, so that what is left drafts for it best."""

from collections.abc import Sequence

from mxconv.engine.loader import LoadedPackage
from mxconv.engine.skipped import Skipped
from mxconv.errors import ModelError
from mxconv.package.draft_spec import DraftSpec
from mxconv.package.manifest import LevelRecord, Manifest
from mxconv.progress import Progress, silent
from mxconv.speculation.self_drafts.layer_search import LayerSearch, layer_skip_speedup, search_layers
from mxconv.speculation.self_drafts.part_bytes import PartBytes
from mxconv.speculation.target_text import TargetText

LEVEL = "layer-skip"


def tune_layers(
    loaded: LoadedPackage,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    num_evaluations: int,
    num_draft_tokens: int,
    seed: int = 0,
    progress: Progress = silent,
) -> LayerSearch:
    """Let the target write its texts, then search the parts without which it would have written them fastest.

    A set's score is the speed-up that it would give where time is bytes of weights read: no clock is used, so the same
    seed finds the same set everywhere.

    Args:
        loaded: a package; its target is used.
        prompts: token ids, a list each.
        max_new_tokens: a prompt.
        num_evaluations: of sets.
        num_draft_tokens: drafted a round.
        seed: of the search.
        progress: told about texts and evaluations.

    Raises:
        ModelError: a prompt is too long, or no evaluations.
    """
    target = loaded.levels[0].decoder
    assert target is not None
    texts = []
    for number, prompt in enumerate(prompts):
        progress("texts", number, len(prompts))
        texts.append(TargetText.write(target, prompt, max_new_tokens, loaded.tokenizer.eos_token_ids))
    progress("texts", len(prompts), len(prompts))
    num_bytes = PartBytes.of(target)
    speedup = layer_skip_speedup(target, texts, num_draft_tokens, num_bytes, num_bytes.total())
    num_scored = 0

    def score(skipped: Skipped) -> float:
        nonlocal num_scored
        found = speedup(skipped)
        num_scored += 1
        progress("sets of layers", num_scored, num_evaluations)
        return found

    return search_layers(score, target.config.num_hidden_layers, num_evaluations, seed)


def with_layer_skip(manifest: Manifest, skipped: Skipped, num_draft_tokens: int, force: bool) -> Manifest:
    """The manifest with such a level behind the target, the dearest of all drafts, or in place of the one it has.

    Raises:
        ModelError: it has one and `force` is not set, or has another level of that name.
    """
    record = DraftSpec("layer-skip", str(skipped), num_draft_tokens).record(LEVEL)
    levels: list[LevelRecord] = list(manifest.levels)
    place = next((index for index, level in enumerate(levels) if level.name == LEVEL), None)
    if place is None:
        levels.insert(1, record)
    elif force and levels[place].kind == "layer-skip":
        levels[place] = record
    else:
        raise ModelError(
            f"level {LEVEL}: the package has one, {levels[place].skipped or levels[place].kind}; nothing is "
            "overwritten. Give --force to replace a set of layers."
        )
    return manifest.model_copy(update={"levels": levels})
