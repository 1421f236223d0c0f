"""Statistics as pure functions on arrays. Undefined results are None, never 0."""
