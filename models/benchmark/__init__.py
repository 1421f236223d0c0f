"""Benchmark of inference cost: latency, throughput, memory and energy of a model by context."""
