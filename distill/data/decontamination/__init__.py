"""Decontamination: the training documents that contain text of benchmarks, listed for `exclude`."""
