"""The leaderboard of a comparison, in a terminal."""

from typing import Any


def print_leaderboard(comparison: Any) -> None:
    """Print the leaderboard of an `evalsuite.reports.comparison.Comparison` and the path of its page."""
    print(comparison.text.rstrip())
    print(f"\npage: {comparison.page}")
