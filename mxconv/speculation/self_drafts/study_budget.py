"""How much of its time a draft may spend on learning: a small share, and a little from the start."""

from mxconv.speculation.pacing.running_mean import MOST_UNUSUAL, RunningMean

SHARE_TO_STUDY = 0.05  # of the time that decoding takes
FIRST_ROUNDS = 6.0  # worth of study before anything was saved up


class StudyBudget:
    """An account in seconds. Rounds pay in, studies draw; nothing is begun that is not expected to be covered.

    Args:
        share: of the seconds of decoding.
        first_rounds: what there is from the start, in rounds of usual length.
    """

    def __init__(self, share: float = SHARE_TO_STUDY, first_rounds: float = FIRST_ROUNDS) -> None:
        self._share = share
        self._first_rounds = first_rounds
        self._round = RunningMean()
        self._study = RunningMean()
        self._saved = 0.0
        self.decoding_seconds = 0.0
        self.study_seconds = 0.0

    def pay(self, seconds: float) -> None:
        """A round of decoding took so long, without its study. A pause of others counts little."""
        if self._round.weight:
            seconds = min(seconds, MOST_UNUSUAL * self._round.value)
        self._round.fade()
        self._round.add(seconds)
        self.decoding_seconds += seconds
        self._saved += self._share * seconds

    @property
    def allows(self) -> bool:
        """Whether another study is covered; one that was never measured is believed to take as long as a round."""
        return self._round.weight > 0 and self._first_rounds * self._round.value + self._saved >= self._expected

    def spend(self, seconds: float) -> None:
        """A study has taken so long; what takes far longer than expected was interrupted by somebody else."""
        booked = min(seconds, MOST_UNUSUAL * self._expected)
        self._study.fade()
        self._study.add(booked)
        self.study_seconds += seconds
        self._saved -= booked

    @property
    def _expected(self) -> float:
        """Seconds of a study."""
        return self._study.value if self._study.weight else self._round.value
