"""What a comparison says in a terminal."""

from typing import Any


def print_leaderboard(comparison: Any) -> None:
    """Print the Markdown report of an `evalsuite.reports.compare.Comparison` and where its page is."""
    print(comparison.markdown.rstrip())
    print(f"\nthe page: {comparison.page}")
