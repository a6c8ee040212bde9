"""When a worker is late, so that an idle one may do the same once more."""

from bisect import insort

LATE_SECONDS = 10.0  # nobody is late before that: a disk may have to wake up
LATE_TIMES = 4.0  # of what others took for as many bytes
UNKNOWN_RATE = 1e-7  # seconds a byte, as long as nobody has ended anything: slower than disks are


class Pace:
    """Seconds for each byte, of what workers ended."""

    def __init__(self) -> None:
        self._rates: list[float] = []  # ascending

    def note(self, num_bytes: int, seconds: float) -> None:
        """A worker took so long for so many."""
        insort(self._rates, seconds / num_bytes)

    def patience(self, num_bytes: int, num_times: int) -> float:
        """Seconds after which a worker is late with so many bytes.

        Args:
            num_bytes: that it was sent.
            num_times: how often others were late with them: each doubles the seconds, so that what takes long
                everywhere ends somewhere.
        """
        rate = self._rates[len(self._rates) // 2] if self._rates else UNKNOWN_RATE
        return float(max(LATE_SECONDS, LATE_TIMES * rate * num_bytes) * 2**num_times)
