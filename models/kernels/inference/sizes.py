"""Sizes of grids and blocks. Triton's own functions, which kernels can call as well, take the host longer."""


def ceil_div(value: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return -(-value // divisor)


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value`, which is positive."""
    return 1 << (value - 1).bit_length()
