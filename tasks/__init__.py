"""What is asked: benchmarks, suites, generators and the frozen data."""
