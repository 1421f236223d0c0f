"""Infer phase: jobs from the run folder, workers that compute responses anywhere, and their collection."""
