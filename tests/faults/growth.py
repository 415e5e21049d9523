"""Measured quantities over time: which of them grow without bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import linear_regression
from typing import Final

Point = tuple[float, float]
"""Seconds since the start, and the value."""

_FEW: Final = 4
"""Fewer points say nothing."""
_GROWTH: Final = 1.3
_SLACK: Final = 50
"""Megabytes, or things: garbage collection and what a kill happened to interrupt."""


@dataclass
class Series:
    """One measured quantity over time."""

    unit: str
    is_history: bool = False
    """Whether it grows with the changes, because it is their history."""
    points: list[Point] = field(default_factory=list)


class Growth:
    """Samples of a run whose first part is disturbed by kills, and whose rest is not.

    What a kill ends cannot grow for long, so only the undisturbed part shows a slow leak.
    """

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}
        self._disturbed_until = float("inf")
        self._settled_at = float("inf")

    def add(self, name: str, unit: str, at: float, value: float, *, is_history: bool = False) -> None:
        self.series.setdefault(name, Series(unit, is_history)).points.append((at, value))

    def end_of_kills(self, at: float, settled_at: float) -> None:
        """No process is killed from now on. At `settled_at` the last that was killed has warmed up again."""
        self._disturbed_until, self._settled_at = at, settled_at

    def table(self) -> str:
        """Each quantity: its largest values in both halves of the kills and after them, and then its slope."""
        lines = [f"{'':34}{'kills: half':>12}{'other half':>12}{'no kills':>12}{'per hour':>12}"]
        for name, series in sorted(self.series.items()):
            disturbed, quiet = self._parts(series)
            if len(disturbed) >= _FEW and len(quiet) >= _FEW:
                first, second = _largest_of_halves(disturbed)
                note = "  its history" if series.is_history else ""
                values = f"{first:12,.0f}{second:12,.0f}{_largest(quiet):12,.0f}{_hourly(quiet):+12,.0f}"
                lines.append(f"{name:34}{values} {series.unit}{note}")
        return "\n".join(lines)

    def unbounded(self) -> list[str]:
        """What grew, except histories."""
        grown = []
        for name, series in self.series.items():
            for part in self._parts(series):
                if not series.is_history and len(part) >= 2 * _FEW:
                    first, second = _largest_of_halves(part)
                    if second > _GROWTH * first + _SLACK:
                        grown.append(f"{name}: {first:,.0f} → {second:,.0f} {series.unit}")
        return grown

    def _parts(self, series: Series) -> tuple[list[Point], list[Point]]:
        disturbed = [point for point in series.points if point[0] <= self._disturbed_until]
        return disturbed, [point for point in series.points if point[0] >= self._settled_at]


def _largest(points: Sequence[Point]) -> float:
    return max(value for _, value in points)


def _largest_of_halves(points: Sequence[Point]) -> tuple[float, float]:
    middle = len(points) // 2
    return _largest(points[:middle]), _largest(points[middle:])


def _hourly(points: Sequence[Point]) -> float:
    return linear_regression(*zip(*points, strict=True)).slope * 3600
