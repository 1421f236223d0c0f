"""Chat rendering: assistant turns of different chat templates are located exactly."""

import pytest

from evalsuite.distill.data.chat import (
    chat_renderer,
    conversation_segments,
    read_messages,
    shipped_templates,
    source_renderer,
)
from evalsuite.distill.data.examples import Example, parse_row
from evalsuite.distill.data.packing import tokenize
from evalsuite.distill.recipe.data_sources import DataSourceConfig, HubSourceConfig
from evalsuite.foundation import ConfigError, DataError
from evalsuite.models.checkpoints.tokenizers import TextEncoder

CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Where does Nils live?"},
    {"role": "assistant", "content": "Penhall"},
    {"role": "user", "content": "What pet has Ivan?"},
    {"role": "assistant", "content": "an owl"},
]

REWRITES_HISTORY = """
{%- for message in messages -%}
{%- if message['role'] == 'assistant' and not loop.last -%}{{- '[A]' + message['content'] | upper + '[/A]' -}}
{%- elif message['role'] == 'assistant' -%}{{- '[A]' + message['content'] + '[/A]' -}}
{%- else -%}{{- '[Q]' + message['content'] + '[/Q]' -}}{%- endif -%}
{%- endfor -%}{%- if add_generation_prompt -%}{{- '[A]' -}}{%- endif -%}"""

MARKED = {
    "chatml": ["Penhall<|im_end|>\n", "an owl<|im_end|>\n"],
    "llama3": ["Penhall<|eot_id|>", "an owl<|eot_id|>"],
    "zephyr": ["Penhall<|end|>\n", "an owl<|end|>\n"],
}


def rendered_segments(messages, render):
    return conversation_segments(messages, render(messages, False), render)


@pytest.mark.parametrize("template", MARKED)
def test_assistant_turns_are_marked_with_their_end_of_turn_token(tokenizer, template):
    tokenizer.bos_token = "<|end|>"
    segments = rendered_segments(CONVERSATION, chat_renderer(tokenizer, template))
    assert [text for text, marked in segments if marked] == MARKED[template]
    rendered = tokenizer.apply_chat_template(
        CONVERSATION, chat_template=shipped_templates()[template], tokenize=False
    )
    assert "".join(text for text, _ in segments) == rendered


@pytest.mark.parametrize("template", MARKED)
def test_the_loss_mask_covers_exactly_the_marked_text(tokenizer, template):
    tokenizer.bos_token = "<|end|>"
    segments = rendered_segments(CONVERSATION, chat_renderer(tokenizer, template))
    (document,) = tokenize(
        [Example(segments, has_eos=True)],
        TextEncoder(tokenizer),
        tokenizer.eos_token_id,
        mask_prompt=True,
    )
    completions = tokenizer.decode(document.tokens[document.loss_mask])
    assert completions == "".join(MARKED[template])
    assert len(document.tokens) == len(document.loss_mask)


def test_turns_that_a_template_rewrites_are_excluded_from_the_loss(tokenizer):
    segments = rendered_segments(CONVERSATION[1:], chat_renderer(tokenizer, REWRITES_HISTORY))
    assert [text for text, marked in segments if marked] == ["an owl[/A]"]


def test_turns_are_found_whatever_the_prompt_begins_with(tokenizer):
    other = "{%- if add_generation_prompt -%}other{%- endif -%}"
    other += "{%- for m in messages -%}{{- m.content + ';' -}}{%- endfor -%}"
    segments = rendered_segments(CONVERSATION, chat_renderer(tokenizer, other))
    assert [text for text, marked in segments if marked] == ["Penhall;", "an owl;"]


@pytest.mark.parametrize("content", ["m.content | upper", "m.content[:2]", "''"])
def test_a_template_that_rewrites_the_last_turn_is_refused(tokenizer, content):
    broken = "{%- for m in messages -%}{{- " + content + " + ';' -}}{%- endfor -%}"
    with pytest.raises(DataError, match="drops or rewrites the last turn; set chat_template"):
        rendered_segments(CONVERSATION, chat_renderer(tokenizer, broken))


def test_unknown_templates_suggest_the_nearest(tokenizer):
    with pytest.raises(ConfigError, match="did you mean 'chatml'"):
        chat_renderer(tokenizer, "chatm")


def test_a_tokenizer_without_template_is_refused(tokenizer):
    with pytest.raises(ConfigError, match="no chat template"):
        chat_renderer(tokenizer, None)


THINKING = """
{%- for message in messages -%}{{- '[' + message.role + ']' -}}
{%- if message.role == 'assistant' and loop.last -%}{{- '<think></think>' -}}{%- endif -%}
{{- message.content + ';' -}}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '[assistant]' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think></think>' -}}{%- endif -%}
{%- endif -%}"""
"""As in Qwen3's template: thoughts of earlier turns are dropped, and an empty thought begins each answer."""


def source(**changes) -> DataSourceConfig:
    value = {
        "kind": "hub",
        "dataset": "org/chat",
        "messages": "messages",
        "chat_template": THINKING,
        **changes,
    }
    return DataSourceConfig.model_validate(value)


def test_template_arguments_move_the_empty_thought_into_the_prompt(tokenizer):
    def loss_text(**changes) -> list[str]:
        segments = rendered_segments(CONVERSATION[1:3], source_renderer(tokenizer, source(**changes)))
        return [text for text, marked in segments if marked]

    assert loss_text() == ["<think></think>Penhall;"]
    assert loss_text(chat_template_kwargs={"enable_thinking": True}) == ["<think></think>Penhall;"]
    assert loss_text(chat_template_kwargs={"enable_thinking": False}) == ["Penhall;"]


def test_arguments_that_a_template_does_not_read_are_refused(tokenizer):
    with pytest.raises(
        ConfigError, match=r"reads no argument 'enable_thinkin'; did you mean 'enable_thinking'"
    ):
        source_renderer(tokenizer, source(chat_template_kwargs={"enable_thinkin": False}))
    with pytest.raises(ConfigError, match="'messages' is set by evalsuite"):
        source_renderer(tokenizer, source(chat_template_kwargs={"messages": 1}))


def test_a_template_that_rejects_its_arguments_is_named(tokenizer):
    strict = "{%- if level > 3 -%}{{- raise_exception('level must be at most 3') -}}{%- endif -%}" + THINKING
    render = source_renderer(tokenizer, source(chat_template=strict, chat_template_kwargs={"level": 4}))
    with pytest.raises(DataError, match="level must be at most 3"):
        render(CONVERSATION, False)


def test_plain_text_has_no_renderer(tokenizer):
    assert source_renderer(tokenizer, HubSourceConfig(kind="hub", dataset="org/text")) is None


def test_conversations_of_two_forms_are_the_same():
    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello")]
    speakers = {"user": "human", "assistant": "gpt", "system": "system"}
    expected = [{"role": role, "content": text} for role, text in said]
    sharegpt = [{"from": speakers[role], "value": text, "weight": 1.0} for role, text in said]
    assert read_messages(sharegpt, "conversations") == expected
    assert read_messages(expected, "messages") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", r"column 'c' is not a list of \{role, content\} or \{from, value\}"),
        ([], "column 'c' holds a conversation without messages"),
        ([{"from": "human"}], r"is not a list of"),
        ([{"from": "human", "value": "a"}, "b"], r"is not a list of"),
        ([{"from": "humen", "value": "a"}], r"column 'c': unknown speaker 'humen'; did you mean 'human'"),
    ],
)
def test_other_conversations_are_refused(value, message):
    with pytest.raises(DataError, match=message):
        read_messages(value, "c")


def test_conversations_are_rendered_once_until_their_segments_are_needed(tokenizer):
    render, calls = chat_renderer(tokenizer, "chatml"), []

    def counted(messages, add_generation_prompt):
        calls.append(len(messages))
        return render(messages, add_generation_prompt)

    chats = source(messages="messages", chat_template="chatml")
    kept = parse_row({"messages": CONVERSATION}, chats, counted)
    assert calls == [len(CONVERSATION)]
    example = kept.segmented(render, ())
    assert example == Example(rendered_segments(CONVERSATION, render))
    assert kept.length == example.length
    longer = chats.model_copy(update={"min_characters": kept.length + 1})
    assert parse_row({"messages": CONVERSATION}, longer, counted) is None
    assert calls == [len(CONVERSATION)] * 2
