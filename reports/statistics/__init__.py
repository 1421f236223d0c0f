"""Pure functions on arrays, one idea a file. What is undefined is None, never 0."""
