"""Prices between and beyond those that were measured: a further unit costs no less than the one before it."""

from bisect import bisect_left
from collections.abc import Sequence

Point = tuple[float, float]  # units, seconds


class ConvexCurve:
    """The greatest convex curve that lies above none of some points. It falls nowhere.

    Args:
        points: at least one, by ascending units.
    """

    def __init__(self, points: Sequence[Point]) -> None:
        lowest = min(seconds for _, seconds in points)
        curve = [(points[0][0], min(points[0][1], lowest))]
        for point in points[1:]:
            while len(curve) > 1 and slope(curve[-2], curve[-1]) >= slope(curve[-1], point):
                curve.pop()
            curve.append(point)
        self.points = curve
        self._units = [units for units, _ in curve]

    def at(self, units: float, first_slope: float) -> float:
        """Seconds of so many; beyond the last point on as it goes, and at least by `first_slope` of the first's."""
        place = bisect_left(self._units, units)
        if place == 0:
            return self.points[0][1]
        (width, known), *following = self.points[place - 1 : place + 1]
        if following:
            steepness = slope((width, known), following[0])
        else:
            last = slope(*self.points[-2:]) if len(self.points) > 1 else 0.0
            steepness = max(last, first_slope * self.points[0][1])
        return known + steepness * (units - width)


def slope(first: Point, second: Point) -> float:
    return (second[1] - first[1]) / (second[0] - first[0])
