"""Reasoning in generated responses: the block `<think> … </think>` before the answer.

Some templates end the prompt with the opening tag, so that a response begins within the block.
"""

from evalsuite.foundation.thoughts import CLOSE, OPEN, split_thought

UNCLOSED = f"the response ends within a {OPEN} block, so it has no answer"


def opens_reasoning(prompt: str) -> bool:
    """Return whether a response to this prompt begins within a block."""
    return prompt.rstrip().endswith(OPEN)


def answer_of(response: str, *, in_reasoning: bool) -> str | None:
    """Return the answer of a response: what follows its last closing tag, else the whole response.

    The block is that of `split_thought`, whose opening tag the decoder may have taken, too.

    Args:
        response: text of the response.
        in_reasoning: whether the response begins within a block, see `opens_reasoning`.

    Returns:
        None if the response ends within a block.
    """
    _, answer = split_thought(response)
    if answer.lstrip().startswith(OPEN) or (in_reasoning and CLOSE not in response):
        return None
    return answer
