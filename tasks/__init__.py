"""Benchmarks, suites, data sources and document generators."""
