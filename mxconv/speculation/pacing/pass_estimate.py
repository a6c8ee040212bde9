"""What a pass of a level takes that decodes one text: of one token, and of each further one."""

from dataclasses import dataclass, field

from mxconv.drafts.running_mean import RunningMean

NARROW_SLOPE = 0.04  # of a plain pass for each further token, until wider ones were seen


@dataclass
class PassEstimate:
    """Seconds of a level's own pass: of plain ones, and of wider ones on average; on a line through both.

    Args:
        first_slope: of a plain pass for each further token, until wider ones were seen.
    """

    first_slope: float = NARROW_SLOPE
    plain: RunningMean = field(default_factory=RunningMean)
    wide: RunningMean = field(default_factory=RunningMean)
    width: RunningMean = field(default_factory=RunningMean)

    def add(self, num_tokens: int, seconds: float) -> None:
        for mean in (self.plain, self.wide, self.width):
            mean.fade()
        if num_tokens == 1:
            self.plain.add_seconds(seconds)
        else:
            self.wide.add_seconds(seconds)
            self.width.add(num_tokens)

    def line(self) -> tuple[float, float]:
        """Seconds of one token, and of each further one."""
        if not self.wide.weight:
            return self.plain.value, self.first_slope * self.plain.value
        # a wide pass that is faster than a plain one was shows that the machine has become faster since
        plain = min(self.plain.value, self.wide.value)
        weight = self.wide.weight
        further = ((self.wide.value - plain) * weight + self.first_slope * plain) / (
            (self.width.value - 1) * weight + 1
        )
        return plain, min(further, plain)  # they could be evaluated one by one
