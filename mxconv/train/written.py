"""What is written for a training: the model that writes, and what it is given to continue."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mxconv.arch.whole_model import checkpoint_config
from mxconv.checkpoint.source import open_checkpoint
from mxconv.drafts.loader import LoadedPackage
from mxconv.engine.decoder import Decoder
from mxconv.engine.matrices import Matrices
from mxconv.engine.stored_weights import dense_weights
from mxconv.kernels.engine import choose_engine
from mxconv.package.manifest import FILE_NAME
from mxconv.progress import Progress
from mxconv.text.chat import encode_prompts
from mxconv.text.messages import read_prompts
from mxconv.text.tokenizer import Tokenizer
from mxconv.train.windows import text_windows


@contextmanager
def target_decoder(folder: Path) -> Iterator[Decoder]:
    """The decoder of the 16-bit weights, while the files are open.

    Raises:
        MxconvError: the folder holds no model that mxconv decodes.
    """
    if (folder / FILE_NAME).is_file():
        with LoadedPackage(folder, ["target"]) as package:
            decoder = package.levels[0].decoder
            assert decoder is not None
            yield decoder
        return
    with open_checkpoint(folder) as checkpoint:
        config = checkpoint_config(checkpoint)
        matrices = Matrices(choose_engine())
        yield matrices.decoder(config, dense_weights(checkpoint.tensors, config, matrices), str(folder))


def text_beginnings(
    files: Sequence[Path], tokenizer: Tokenizer, length: int, count: int, seed: int, progress: Progress
) -> list[list[int]]:
    """Pieces of texts, chosen by a seed, to continue: `count` of `length` tokens.

    Raises:
        MxconvError: a file cannot be read or is no text, or there is not one piece.
    """
    found = text_windows(files, tokenizer, length, progress).token_ids
    random = np.random.Generator(np.random.Philox(key=seed))
    chosen: list[list[int]] = found[random.permutation(len(found))[np.arange(count) % len(found)]].tolist()
    return chosen


def chat_prompts(files: Sequence[Path], folder: Path, tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Prompts in the chat template of the model in `folder`, `count` of them: all in their order, then again.

    Raises:
        MxconvError: a file cannot be read or holds no prompt, or there is no chat template.
    """
    prompts = [prompt for path in files for prompt in read_prompts(path, chat=True)]
    ids = encode_prompts(tokenizer, folder, prompts[:count])
    return [ids[number % len(ids)] for number in range(count)]
