"""Text of a generation prompt: chat templates, plain text and truncation."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from evalsuite.foundation import ConfigError
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.generator import generator_of

Message = tuple[str, str]
"""(role, text)."""
Encode = Callable[[Sequence[str]], Mapping[str, Sequence[int]]]


def chat_text(benchmark: Benchmark, messages: Sequence[Message], tokenizer: Any) -> str:
    """Return messages as a chat, with the prompt's answer prefix in the assistant's turn.

    RULER ends its prompts with the first words of the answer and puts them after the chat template
    (`answer_prefix` in its `prepare.py`; lm-eval's `gen_prefix`).

    Args:
        benchmark: of the last message; it names arguments of the chat template.
        messages: (role, text) pairs.
        tokenizer: its chat template is applied.
    """
    role, text = messages[-1]
    at = len(text)
    generator = generator_of(benchmark)
    if benchmark.generated is not None and generator is not None and generator.answer_prefix_start:
        at = generator.answer_prefix_start(benchmark.generated.task, text)
    arguments = benchmark.generation.chat_template_kwargs if benchmark.generation is not None else {}
    chat = prompt_text([*messages[:-1], (role, text[:at])], "chat", tokenizer, arguments)
    return chat + text[at:].lstrip()


def prompt_text(
    messages: Sequence[Message],
    prompt: str,
    tokenizer: Any | None,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Return the text that a model continues.

    Args:
        messages: (role, text) pairs.
        prompt: ``literal`` concatenates the texts as they are.
        tokenizer: its chat template is applied; None gives plain text: the messages, separated by blank
            lines, and a final line break.
        arguments: further variables of the chat template.

    Raises:
        ConfigError: the chat template refuses the messages or its arguments.
    """
    if prompt == "literal":
        return "".join(text for _, text in messages)
    if tokenizer is None:
        return "\n\n".join(text for _, text in messages) + "\n"
    chat = [{"role": role, "content": text} for role, text in messages]
    try:
        return str(
            tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, **arguments)
        )
    except Exception as error:  # A template is a program, which can fail in any way.
        given = f" or its arguments {dict(arguments)}" if arguments else ""
        raise ConfigError(f"the chat template refuses a prompt{given} ({error})") from error


def truncate_middle(
    text: str, max_tokens: int, encode: Encode, tokenizer: Any, wrap: Callable[[str], str]
) -> str:
    """Return a text that, wrapped, has at most `max_tokens` tokens, cutting its middle if necessary.

    Both ends keep the same number of tokens, as many as fit (`pred.py` of LongBench, arXiv 2308.14508). What
    `wrap` adds, such as a chat template, is never cut.

    Args:
        text: the prompt.
        max_tokens: tokens available for the prompt.
        encode: tokens of texts, as the model receives them.
        tokenizer: of the model.
        wrap: adds what surrounds the prompt.

    Raises:
        ConfigError: not even the two ends fit.
    """

    def count(whole: str) -> int:
        return len(encode([whole])[whole])

    excess = count(wrap(text)) - max_tokens
    if excess <= 0:
        return text
    tokens = tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)[
        "input_ids"
    ]
    remaining = len(tokens) - excess
    while remaining >= 2:
        half = remaining // 2
        ends = _decode(tokenizer, tokens[:half]) + _decode(tokenizer, tokens[-half:])
        # Decoded and encoded again, the text may have more tokens, at the cut and within split characters.
        excess = count(wrap(ends)) - max_tokens
        if excess <= 0:
            return ends
        remaining -= excess
    raise ConfigError(
        f"the prompt cannot be truncated to {max_tokens} tokens, which is all that is left for it"
    )


def _decode(tokenizer: Any, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))
