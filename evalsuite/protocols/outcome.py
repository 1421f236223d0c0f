"""Why an answer is not right: the triage that every record carries."""

from collections.abc import Sequence

from evalsuite.models.engine.requests import GenerateAnswer

REPEATS = 3
LEAST = 24


def outcome_of(answer: GenerateAnswer, extracted: str, *, right: bool) -> str:
    """Return ``ok``, ``extraction_failed``, ``truncated``, ``looped`` or ``error``.

    A right answer is ok however it ended. A wrong one that runs in circles has looped; one that hit the
    token limit before anything could be read out of it was truncated.
    """
    if answer.error:
        return "error"
    if right:
        return "ok"
    if answer.finish == "length" and looped(answer.tokens):
        return "looped"
    if not extracted:
        return "truncated" if answer.finish == "length" else "extraction_failed"
    # Where nothing is extracted, the harness judges the whole response.
    whole = extracted.strip() == answer.text.strip()
    return "truncated" if answer.finish == "length" and whole else "ok"


def looped(tokens: Sequence[int]) -> bool:
    """Whether an answer ends in a loop: one phrase, written at least `REPEATS` times over `LEAST` tokens."""
    for period in range(1, len(tokens) // REPEATS + 1):
        span = max(LEAST, REPEATS * period)
        if span > len(tokens):
            return False
        if tokens[-span:-period] == tokens[-span + period :]:
            return True
    return False
