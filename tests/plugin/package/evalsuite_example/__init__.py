"""One extension of evalsuite of each kind that another package can add."""
