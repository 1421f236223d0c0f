"""Generated benchmarks: RULER with other recall tasks, and the pocket world."""
