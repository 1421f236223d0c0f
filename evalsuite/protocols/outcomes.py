"""Outcome of a generated response: why it scored as it did. Every score row carries one."""

from collections.abc import Sequence

from evalsuite.models.inference.requests import GenerateResponse

MIN_REPEATS = 3
MIN_LOOP_TOKENS = 24


def classify_outcome(
    response: GenerateResponse,
    extracted: str,
    *,
    correct: bool,
    guessed: bool = False,
    ran_on: bool = False,
) -> str:
    """Return one of `evalsuite.foundation.taxonomy.OUTCOMES`.

    A correct response is ok however it ended, unless the harness guessed. A wrong one that ends in a loop has
    looped; one that reached the token limit before an answer could be extracted is truncated.

    Args:
        response: of a model.
        extracted: the harness's answer; empty for none.
        correct: whether the harness counts it as right.
        guessed: whether the response does not name that answer.
        ran_on: whether the response scores more without a next question that it goes on with.
    """
    if response.error:
        return "error"
    if ran_on:
        return "ran_on"
    if guessed:
        return "guessed"
    if correct:
        return "ok"
    if response.finish_reason == "length" and is_looping(response.tokens):
        return "looped"
    if not extracted:
        return "truncated" if response.finish_reason == "length" else "extraction_failed"
    # Without an extracted answer, the harness scores the whole response.
    whole = extracted.strip() == response.text.strip()
    return "truncated" if response.finish_reason == "length" and whole else "ok"


def is_looping(tokens: Sequence[int]) -> bool:
    """Return whether a response ends in a loop.

    A loop is a phrase that repeats at least `MIN_REPEATS` times over at least `MIN_LOOP_TOKENS` tokens.
    """
    for period in range(1, len(tokens) // MIN_REPEATS + 1):
        span = max(MIN_LOOP_TOKENS, MIN_REPEATS * period)
        if span > len(tokens):
            return False
        if tokens[-span:-period] == tokens[-span + period :]:
            return True
    return False
