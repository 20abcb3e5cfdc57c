"""What many values come to."""

from __future__ import annotations

from collections.abc import Sequence

PERCENTS = (50, 95, 99)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Linear between the two nearest values; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
