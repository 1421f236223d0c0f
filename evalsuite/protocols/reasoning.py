"""Reasoning in generated responses: the block `<think> … </think>` before the answer.

Reasoning models such as Qwen3 and DeepSeek-R1 write the block as text. Some templates end the prompt with the
opening tag, so that a response begins within the block.
"""

OPEN, CLOSE = "<think>", "</think>"

UNCLOSED = f"the response ends within a {OPEN} block, so it has no answer"


def opens_reasoning(prompt: str) -> bool:
    """Return whether a response to this prompt begins within a block."""
    return prompt.rstrip().endswith(OPEN)


def answer_of(response: str, *, in_reasoning: bool) -> str | None:
    """Return the answer of a response: what follows its last closing tag, else the whole response.

    A closing tag counts without an opening one, which the prompt or the decoder may have taken. Line breaks
    after it belong to the block, as in Qwen3's chat template.

    Args:
        response: text of the response.
        in_reasoning: whether the response begins within a block, see `opens_reasoning`.

    Returns:
        None if the response ends within a block.
    """
    _, closed, answer = response.rpartition(CLOSE)
    if answer.lstrip().startswith(OPEN) or (in_reasoning and not closed):
        return None
    return answer.lstrip("\n") if closed else answer
