"""Throughput of the data loader, of large models and of executors, as published in the results."""
