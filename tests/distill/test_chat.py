"""Completion masks of three chat templates that differ in everything that can go wrong."""

import pytest

from evalsuite.distill.chat import chat_renderer, render_conversation, shipped_templates
from evalsuite.distill.packing import tokenize
from evalsuite.distill.readers import Example
from evalsuite.foundation import ConfigError, DataError

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


@pytest.mark.parametrize("template", MARKED)
def test_what_the_assistant_wrote_is_marked_with_its_end_of_turn(tokenizer, template):
    tokenizer.bos_token = "<|end|>"
    pieces = render_conversation(CONVERSATION, chat_renderer(tokenizer, template))
    assert [text for text, marked in pieces if marked] == MARKED[template]
    whole = tokenizer.apply_chat_template(
        CONVERSATION, chat_template=shipped_templates()[template], tokenize=False
    )
    assert "".join(text for text, _ in pieces) == whole


@pytest.mark.parametrize("template", MARKED)
def test_the_mask_holds_exactly_the_tokens_of_the_marked_text(tokenizer, template):
    tokenizer.bos_token = "<|end|>"
    pieces = render_conversation(CONVERSATION, chat_renderer(tokenizer, template))
    (document,) = tokenize(
        [Example(pieces, closed=True)], tokenizer.backend_tokenizer, tokenizer.eos_token_id, completions=True
    )
    kept = tokenizer.decode(document.tokens[document.counts])
    assert kept == "".join(MARKED[template])
    assert len(document.tokens) == len(document.counts)


def test_turns_that_a_template_rewrites_later_are_not_trained_on(tokenizer):
    pieces = render_conversation(CONVERSATION[1:], chat_renderer(tokenizer, REWRITES_HISTORY))
    assert [text for text, marked in pieces if marked] == ["an owl[/A]"]


def test_a_template_whose_prompt_is_no_beginning_of_the_conversation_is_refused(tokenizer):
    broken = "{%- if add_generation_prompt -%}other{%- endif -%}"
    broken += "{%- for m in messages -%}{{- m.content -}}{%- endfor -%}"
    with pytest.raises(DataError, match="chat_template"):
        render_conversation(CONVERSATION, chat_renderer(tokenizer, broken))


def test_an_unknown_template_names_the_nearest(tokenizer):
    with pytest.raises(ConfigError, match="did you mean 'chatml'"):
        chat_renderer(tokenizer, "chatm")


def test_a_tokenizer_without_template_needs_one(tokenizer):
    with pytest.raises(ConfigError, match="no chat template"):
        chat_renderer(tokenizer, None)
