"""Sizes of grids and blocks are those of Triton's functions."""

import math

from evalsuite.models.kernels.inference.sizes import ceil_div, next_power_of_2


def test_sizes() -> None:
    for value in range(1, 300):
        assert next_power_of_2(value) == 2 ** math.ceil(math.log2(value))
        assert all(ceil_div(value, divisor) == math.ceil(value / divisor) for divisor in range(1, 40))
