"""Fits prompts to a stated length: the most filler with which a prompt is not too long."""

from collections.abc import Callable

from evalsuite.foundation import ConfigError

CountTokens = Callable[[str], int]
INITIAL_STEP = 16
"""Units added before the tokens per unit are first estimated."""


def fit_to_length(
    prompt: Callable[[int], str],
    count_tokens: CountTokens,
    max_tokens: int,
    *,
    min_units: int,
    max_units: int | None,
) -> int:
    """Return the largest number of units for which the prompt has at most `max_tokens` tokens.

    Searches by interpolation, since the length is nearly linear in the units: three or four token counts
    for a long prompt.

    Args:
        prompt: number of units → text.
        count_tokens: number of tokens of a text.
        max_tokens: upper bound of the prompt's length.
        min_units, max_units: bounds of the number of units.

    Returns:
        The number of units, or -1 if `min_units` is already too long.

    Raises:
        ConfigError: the tokenizer counts no tokens for units.
    """
    low, low_tokens = min_units, count_tokens(prompt(min_units))
    if low_tokens > max_tokens:
        return -1
    high: int | None = None
    step = INITIAL_STEP
    while low != max_units and high != low + 1:
        units = low + step
        if max_units is not None:
            units = min(units, max_units)
        if high is not None:
            units = min(units, high - 1)
        tokens = count_tokens(prompt(units))
        per_unit = (tokens - low_tokens) / (units - low)
        if per_unit <= 0 and units - low >= INITIAL_STEP:
            raise ConfigError(f"the tokenizer counts no tokens for {units - low} units of filler")
        if tokens <= max_tokens:
            low, low_tokens = units, tokens
        else:
            high = units
        step = max(1, int((max_tokens - low_tokens) / per_unit)) if per_unit > 0 else 1
    return low
