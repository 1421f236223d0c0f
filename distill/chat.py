"""Conversations as text, with what the assistant wrote marked.

Works with any chat template: an assistant turn is what the rendered conversation gains by it, beyond
the generation prompt. Templates that rewrite earlier turns (some move the system prompt or drop
reasoning) only show those turns as they finally stand, so such turns are never trained on.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from evalsuite.foundation import ConfigError, DataError, nearest

TEMPLATES = Path(__file__).with_name("chat_templates.yaml")

Render = Callable[[Sequence[dict[str, str]], bool], str]
"""(messages, add a generation prompt) → text."""


@cache
def shipped_templates() -> dict[str, str]:
    """Name → Jinja template."""
    templates: dict[str, str] = yaml.safe_load(TEMPLATES.read_text())
    return templates


def chat_renderer(tokenizer: Any, template: str | None) -> Render:
    """A function that renders conversations with a shipped template, a Jinja text, or the tokenizer's own.

    Raises:
        ConfigError: an unknown name, or none given and the tokenizer has none.
    """
    if template is not None and "{" not in template:
        if template not in shipped_templates():
            raise ConfigError(f"unknown chat template '{template}'{nearest(template, shipped_templates())}")
        template = shipped_templates()[template]
    if template is None and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template; name one with chat_template: "
            + ", ".join(shipped_templates())
        )

    def render(messages: Sequence[dict[str, str]], prompt: bool) -> str:
        text: str = tokenizer.apply_chat_template(
            list(messages), chat_template=template, add_generation_prompt=prompt, tokenize=False
        )
        return text

    return render


def render_conversation(messages: Sequence[dict[str, str]], render: Render) -> tuple[tuple[str, bool], ...]:
    """The conversation in pieces; True marks what the assistant wrote, its end-of-turn token included.

    Raises:
        DataError: the template's text for the last assistant turn cannot be told from its prompt.
    """
    whole = render(messages, False)
    spans: list[tuple[int, int]] = []
    last = max((index for index, turn in enumerate(messages) if turn["role"] == "assistant"), default=-1)
    for index, turn in enumerate(messages):
        if turn["role"] != "assistant":
            continue
        before = render(messages[:index], True)
        after = whole if index == len(messages) - 1 else render(messages[: index + 1], False)
        if whole.startswith(before) and whole.startswith(after) and len(after) > len(before):
            spans.append((len(before), len(after)))
        elif index == last and not spans:
            raise DataError(
                "the chat template renders a conversation differently from its beginning, so that the "
                "assistant's words cannot be told apart; name another with chat_template"
            )
    pieces: list[tuple[str, bool]] = []
    at = 0
    for start, end in spans:
        pieces += [(whole[at:start], False), (whole[start:end], True)]
        at = end
    pieces.append((whole[at:], False))
    return tuple(piece for piece in pieces if piece[0])
