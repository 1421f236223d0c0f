"""Thoughts: the block `<think> … </think>` that models such as Qwen3 and DeepSeek-R1 write first."""

OPEN, CLOSE = "<think>", "</think>"


def split_thought(text: str) -> tuple[str, str]:
    """Return the thought of a turn, with its tags and what precedes them, and the answer after it.

    A closing tag counts without an opening one, which the prompt may have held; the last one counts. Line
    breaks after it belong to the thought, as in Qwen3's chat template. A text without a closing tag is all
    answer.
    """
    answer = text[text.rfind(CLOSE) + len(CLOSE) :].lstrip("\n") if CLOSE in text else text
    return text[: len(text) - len(answer)], answer
