"""Prompts longer than what a model reads: cut in the middle, as LongBench does (arXiv 2308.14508)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from evalsuite.foundation import ConfigError

Encode = Callable[[Sequence[str]], Mapping[str, Sequence[int]]]


def cut_middle(text: str, room: int, encode: Encode, tokenizer: Any, wrap: Callable[[str], str]) -> str:
    """Return a text that, wrapped, has at most `room` tokens: whole if it fits, else its two ends.

    Both ends keep the same number of tokens, as many as fit (`pred.py` of LongBench); what stands around
    the text, such as a chat template, is never cut.

    Args:
        text: the prompt.
        room: tokens that the model may read.
        encode: tokens of texts, as the model is given them.
        tokenizer: of the model.
        wrap: puts the prompt into what the model is given.

    Raises:
        ConfigError: not even the ends of the text fit.
    """

    def count(whole: str) -> int:
        return len(encode([whole])[whole])

    excess = count(wrap(text)) - room
    if excess <= 0:
        return text
    tokens = tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)[
        "input_ids"
    ]
    kept = len(tokens) - excess
    while kept >= 2:
        half = kept // 2
        ends = _decode(tokenizer, tokens[:half]) + _decode(tokenizer, tokens[-half:])
        # Text that is decoded and read again can have more tokens: where it was cut, and in half letters.
        excess = count(wrap(ends)) - room
        if excess <= 0:
            return ends
        kept -= excess
    raise ConfigError(f"a model that reads {room} tokens beside its answer cannot be given this question")


def _decode(tokenizer: Any, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
