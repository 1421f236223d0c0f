"""Measure how far students, and roundings of the teacher, are from the teacher on the documents of a run."""
