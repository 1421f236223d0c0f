"""Chat rendering with loss masks: conversations as text segments, with assistant turns marked.

Works with any chat template: the text of an assistant turn is what the rendered conversation gains beyond
the generation prompt. Some templates rewrite earlier turns (move the system prompt, drop reasoning), so
that only their final form is rendered; such turns are excluded from the loss.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evalsuite.distill.recipe.data_sources import DataSourceConfig, TableSourceConfig
from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.foundation.chat_templates import check_template_arguments
from evalsuite.foundation.strict_yaml import read_yaml

TEMPLATES = Path(__file__).with_name("chat_templates.yaml")

Render = Callable[[Sequence[dict[str, str]], bool], str]
"""(messages, add_generation_prompt) → text."""


@cache
def shipped_templates() -> dict[str, str]:
    """Name → Jinja template."""
    templates: dict[str, str] = read_yaml(TEMPLATES)
    return templates


def source_renderer(tokenizer: Any, source: DataSourceConfig) -> Render | None:
    """The renderer of a source's conversations; None for plain text. Raises as `chat_renderer` does."""
    if not isinstance(source, TableSourceConfig) or source.messages is None:
        return None
    return chat_renderer(tokenizer, source.chat_template, source.chat_template_kwargs)


def chat_renderer(
    tokenizer: Any, template: str | None, arguments: Mapping[str, Any] = MappingProxyType({})
) -> Render:
    """A function that renders conversations with a shipped template, a Jinja template, or the tokenizer's
    own.

    Args:
        arguments: further variables of the template.

    Raises:
        ConfigError: unknown name, no template given and the tokenizer has none, or an argument that the
            template does not read.
    """
    if template is not None and "{" not in template:
        if template not in shipped_templates():
            raise ConfigError(f"unknown chat template '{template}'{nearest(template, shipped_templates())}")
        template = shipped_templates()[template]
    if template is None and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template; set chat_template to one of: "
            + ", ".join(shipped_templates())
        )

    check_template_arguments(tokenizer.chat_template if template is None else template, arguments)

    def render(messages: Sequence[dict[str, str]], add_generation_prompt: bool) -> str:
        try:
            text: str = tokenizer.apply_chat_template(
                list(messages),
                chat_template=template,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **arguments,
            )
        except Exception as error:  # A template is a program, which can fail in any way.
            raise DataError(f"the chat template refuses a conversation or its arguments ({error})") from None
        return text

    return render


def end_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Texts of the tokens that can end a turn or a text: the special ones."""
    special = {each.content for each in tokenizer.added_tokens_decoder.values() if each.special}
    return tuple(sorted({*special, *tokenizer.all_special_tokens} - {""}))


SPEAKERS = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
"""`from` of ShareGPT's conversations → role."""


def read_messages(value: Any, column: str) -> list[dict[str, str]]:
    """The turns of a conversation as {role, content}, from these or from {from, value}.

    Raises:
        DataError: another type, no turns, or a speaker that is not in SPEAKERS.
    """
    if value == []:
        raise DataError(f"column '{column}' holds a conversation without messages")
    turns = value if isinstance(value, list) and all(isinstance(turn, dict) for turn in value) else []
    for role, content in (("role", "content"), ("from", "value")):
        if not turns or not all(isinstance(turn.get(key), str) for turn in turns for key in (role, content)):
            continue
        if role == "role":
            return turns
        if unknown := {turn["from"] for turn in turns} - SPEAKERS.keys():
            speaker = min(unknown)
            raise DataError(f"column '{column}': unknown speaker '{speaker}'{nearest(speaker, SPEAKERS)}")
        return [{"role": SPEAKERS[turn["from"]], "content": turn["value"]} for turn in turns]
    raise DataError(f"column '{column}' is not a list of {{role, content}} or {{from, value}}")


def conversation_segments(
    messages: Sequence[dict[str, str]], text: str, render: Render
) -> tuple[tuple[str, bool], ...]:
    """Segments of a conversation; True marks assistant turns, including their end-of-turn token.

    Args:
        text: the whole conversation as `render` renders it.

    Raises:
        DataError: the last assistant turn cannot be separated from its prompt.
    """
    spans: list[tuple[int, int]] = []
    last = max((index for index, turn in enumerate(messages) if turn["role"] == "assistant"), default=-1)
    for index, turn in enumerate(messages):
        if turn["role"] != "assistant":
            continue
        before = render(messages[:index], True)
        after = text if index == len(messages) - 1 else render(messages[: index + 1], False)
        if text.startswith(before) and text.startswith(after) and len(after) > len(before):
            spans.append((len(before), len(after)))
        elif index == last and not spans:
            raise DataError(
                "the chat template renders the start of a conversation differently from the whole, so "
                "assistant turns cannot be located; set chat_template to another template"
            )
    segments: list[tuple[str, bool]] = []
    position = 0
    for start, end in spans:
        segments += [(text[position:start], False), (text[start:end], True)]
        position = end
    segments.append((text[position:], False))
    return tuple(segment for segment in segments if segment[0])
