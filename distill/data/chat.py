"""Chat rendering with loss masks: conversations as text segments, with assistant turns marked.

Works with any chat template, also one that renders the start of a conversation differently from the whole:
the conversation is rendered once more for each assistant turn, with another answer in its place, and what
differs is where the answer is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

from evalsuite.distill.recipe.data_sources import DataSourceConfig, Reasoning, TableSourceConfig
from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.foundation.chat_templates import check_template_arguments
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.foundation.thoughts import CLOSE, OPEN, split_thought

TEMPLATES = Path(__file__).with_name("chat_templates.yaml")

Render = Callable[[Sequence[dict[str, Any]], bool], str]
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

    def render(messages: Sequence[dict[str, Any]], add_generation_prompt: bool) -> str:
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


def read_messages(value: Any, column: str) -> list[dict[str, Any]]:
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


THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Keys of a turn that hold its thought apart from its content."""


def thoughts_of(turn: Mapping[str, Any]) -> dict[str, str]:
    """The thoughts of a turn without their tags, by the key that holds them; "" is an empty one."""
    thought, _ = split_thought(turn["content"])
    own = {"content": thought.replace(OPEN, "").replace(CLOSE, "").strip()} if thought else {}
    return own | {key: str(turn[key]).strip() for key in THOUGHT_KEYS if turn.get(key)}


def with_thoughts(messages: Sequence[dict[str, Any]], policy: Reasoning) -> list[dict[str, Any]]:
    """The conversation with the thoughts of its assistant turns kept or stripped.

    Raises:
        DataError: a turn has a thought and the policy is `error`, or a thought that does not end.
    """
    turns = []
    for turn in messages:
        if turn["role"] != "assistant":
            turns.append(turn)
            continue
        _, answer = split_thought(turn["content"])
        if answer.lstrip().startswith(OPEN):
            raise DataError(f"an assistant turn begins a thought ({OPEN}) that does not end")
        if policy == "error" and (found := list(thoughts_of(turn))):
            where = CLOSE if found[-1] == "content" else f"'{found[-1]}'"
            raise DataError(
                f"an assistant turn holds a thought ({where}); set 'reasoning: keep' to train on it, or "
                "'reasoning: strip' to leave it out"
            )
        if policy == "strip":
            turn = {key: value for key, value in turn.items() if key not in THOUGHT_KEYS}
            turn["content"] = answer
        turns.append(turn)
    return turns


def conversation_segments(
    messages: Sequence[dict[str, Any]], text: str, render: Render
) -> tuple[tuple[str, bool], ...]:
    """Segments of a conversation; True marks assistant turns, including their end-of-turn token.

    A turn begins where the generation prompt ends, so that a thought that the template renders belongs to it,
    and an empty one that the prompt holds does not. An earlier turn that the template drops or rewrites is
    not marked.

    Args:
        text: the whole conversation as `render` renders it.

    Raises:
        DataError: the conversation ends with an assistant turn that the template drops or rewrites, or whose
            thought it drops.
    """
    turns = [index for index, turn in enumerate(messages) if turn["role"] == "assistant"]
    if not turns:
        return ((text, False),)
    frame = _Frame.of(messages[: turns[-1]], render)
    segments: list[tuple[str, bool]] = []
    position = 0
    for index in turns:
        is_last = index == len(messages) - 1
        found = _answer(messages, index, text, render)
        if found is None and is_last:
            raise DataError(
                "the chat template drops or rewrites the last turn; set chat_template to another template"
            )
        if found is None or found.start < position:
            continue
        before = text[position : found.start]
        if is_last and not all(each in before for each in thoughts_of(messages[index]).values()):
            raise DataError(
                "the chat template drops the thought of the last turn; set 'reasoning: strip', or "
                "chat_template to another template"
            )
        start = position + frame.turn_start(before)
        end = found.stop + frame.end_length(text[found.stop :])
        segments += [(text[position:start], False), (text[start:end], True)]
        position = end
    segments.append((text[position:], False))
    return tuple(segment for segment in segments if segment[0])


@dataclass(frozen=True, slots=True)
class _Frame:
    """What a template puts around a generated turn: the generation prompt, and what ends the turn."""

    header: str
    closing: str

    @classmethod
    def of(cls, before: Sequence[dict[str, Any]], render: Render) -> "_Frame":
        """Of the turn that follows these messages; with what cannot be told left empty."""
        whole, prompt = render(before, False), render(before, True)
        header = prompt[len(whole) :] if prompt.startswith(whole) else ""
        answered = render([*before, {"role": "assistant", "content": _MARK}], False)
        return cls(header, answered.partition(_MARK)[2])

    def turn_start(self, before: str) -> int:
        """Where in the text before an answer its turn starts."""
        # With an answer that has a thought, a prompt that holds an empty one is not in the text.
        for header in dict.fromkeys([self.header, self.header.partition(OPEN)[0]]):
            if header.strip() and (place := before.rfind(header)) >= 0:
                return place + len(header)
        thought, _ = split_thought(before)
        return before.rfind(OPEN) if OPEN in thought else len(before.rstrip())

    def end_length(self, after: str) -> int:
        """Characters after an answer that end its turn."""
        return sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(after, self.closing, strict=False))
        )


_MARK = "evalsuite: an answer"


def _answer(messages: Sequence[dict[str, Any]], index: int, text: str, render: Render) -> range | None:
    """Where the answer of turn `index` is in the text, without its thought; None if it is not there."""
    thought, answer = split_thought(messages[index]["content"])
    turn = {**messages[index], "content": thought + _MARK}
    parts = render([*messages[:index], turn, *messages[index + 1 :]], False).split(_MARK)
    if len(parts) != 2:
        return None
    before, after = parts
    found = range(len(before), len(text) - len(after))
    if not (text.startswith(before) and text.endswith(after) and len(before) + len(after) <= len(text)):
        return None
    return found if text[found.start : found.stop].strip() == answer.strip() else None
