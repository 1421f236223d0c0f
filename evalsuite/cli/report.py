"""What a comparison says in a terminal."""

from typing import Any


def print_leaderboard(comparison: Any) -> None:
    """Print the leaderboard of an `evalsuite.reports.compare.Comparison` and where its page is."""
    print(comparison.text.rstrip())
    print(f"\nthe page: {comparison.page}")
