"""Processes of a run besides the one that runs inference: they build requests and score responses."""
