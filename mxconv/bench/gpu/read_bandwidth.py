"""What a GPU reads at this moment: clocks and neighbours change it, so it is sampled beside each sample."""

from collections.abc import Callable
from functools import partial

import torch

from mxconv.bench.gpu.launches import Launches
from mxconv.bench.gpu.read_kernel import PIECE_WORDS, read_pieces

PIECE_BYTES = 4 * PIECE_WORDS


class ReadBandwidth:
    """An array that is read again and again."""

    def __init__(self, device: torch.device, num_bytes: int) -> None:
        """`num_bytes` should be several times the L2 cache."""
        self._device = device
        num_pieces = -(-num_bytes // PIECE_BYTES)
        self._words = torch.ones(num_pieces * PIECE_WORDS, dtype=torch.int32, device=device)

    def of(self, num_bytes: int, num_launches: int) -> Callable[[], float]:
        """A sampler of bytes a second, of launches that read about so many bytes each, where the last one stopped.

        Args:
            num_bytes: of a launch, rounded up to pieces of 16 KiB.
            num_launches: one after the other; together they should read several times the L2 cache.
        """
        count = -(-num_bytes // PIECE_BYTES)
        sums = torch.zeros(count, dtype=torch.int32, device=self._device)
        num_pieces = len(self._words) // PIECE_WORDS
        firsts = [index * count % num_pieces for index in range(num_launches)]
        reads = [partial(read_pieces, self._words, first, count, sums) for first in firsts]
        launches = Launches(self._device, reads)
        return lambda: count * PIECE_BYTES / launches.seconds()
