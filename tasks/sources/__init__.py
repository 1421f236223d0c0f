"""Where documents come from: datasets, transforms of their rows, generators, and frozen copies of all."""
