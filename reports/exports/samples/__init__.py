"""Samples of a report as a run folder, small enough to publish: document ids instead of texts."""
