"""Filling a prompt up to a stated length: it fits, and with one more unit of filler it would not."""

from collections.abc import Callable

from evalsuite.foundation import ConfigError

CountTokens = Callable[[str], int]
PROBE = 16
"""Units after which the cost of one is first measured."""


def fill(prompt: Callable[[int], str], count: CountTokens, room: int, *, least: int, most: int | None) -> int:
    """Return the most units with which a prompt has at most `room` tokens, -1 if `least` has more.

    Long prompts are counted three or four times: their length grows almost evenly with the units, so the
    end is found by interpolation.

    Args:
        prompt: the text with a number of units in it.
        count: tokens of a text.
        room: tokens that the prompt may have.
        least, most: units that there must be, and may be.

    Raises:
        ConfigError: the tokenizer counts no tokens for units.
    """
    low, low_cost = least, count(prompt(least))
    if low_cost > room:
        return -1
    high: int | None = None
    step = PROBE
    while low != most and high != low + 1:
        number = low + step
        if most is not None:
            number = min(number, most)
        if high is not None:
            number = min(number, high - 1)
        cost = count(prompt(number))
        per_unit = (cost - low_cost) / (number - low)
        if per_unit <= 0 and number - low >= PROBE:
            raise ConfigError(f"the tokenizer counts no tokens for {number - low} units of filler")
        if cost <= room:
            low, low_cost = number, cost
        else:
            high = number
        step = max(1, int((room - low_cost) / per_unit)) if per_unit > 0 else 1
    return low
