"""Thoughts of training data: kept, stripped or refused, with all assistant turns in the loss."""

import json

import pytest

from evalsuite.distill.data.chat import chat_renderer, conversation_segments, read_messages, with_thoughts
from evalsuite.distill.data.examples import parse_row
from evalsuite.distill.data.loader import DataSources, StageDataLoader
from evalsuite.distill.recipe.data_sources import LocalSourceConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.foundation import DataError

from .reasoning_templates import GEMMA3, LLAMA3, QWEN3, R1, SMOLLM3

THOUGHT = "<think>\nSeven is odd.\n</think>\n"
ROW = {
    "conversations": [
        {"from": "human", "value": "Is 7 even?"},
        {"from": "assistant", "value": f"{THOUGHT}\n<answer>\nNo.\n</answer>"},
    ]
}
"""As in AM-Qwen3-Distilled: thought and answer within one value."""
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Is 7 even?"},
    {"role": "assistant", "content": f"{THOUGHT}\nNo."},
    {"role": "user", "content": "And 8? No. I mean No."},
    {"role": "assistant", "content": "<think>\nEight is.\n</think>\n\nYes. "},
]
OFF = {"enable_thinking": False}
STAGE = Stage.model_validate(
    {
        "name": "stage3b",
        "objective": "kd",
        "data": "chats",
        "tokens": 256,
        "seq_len": 128,
        "batch_size": 2,
        "lr": 1e-3,
        "packing": "documents",
        "loss_mask": "completion",
    }
)


def in_loss(tokenizer, template, messages, policy, **arguments) -> list[str]:
    render = chat_renderer(tokenizer, template, arguments)
    turns = with_thoughts(messages, policy)
    text = render(turns, False)
    segments = conversation_segments(turns, text, render)
    assert "".join(part for part, _ in segments) == text
    return [part for part, marked in segments if marked]


@pytest.mark.parametrize(
    ("template", "policy", "arguments", "expected"),
    [
        # The thought of an earlier turn is dropped, as when it is generated; the turn itself is not.
        (QWEN3, "keep", {}, ["No.<|im_end|>\n", "<think>\nEight is.\n</think>\n\nYes. <|im_end|>\n"]),
        (QWEN3, "keep", OFF, ["No.<|im_end|>\n", "<think>\nEight is.\n</think>\n\nYes. <|im_end|>\n"]),
        (QWEN3, "strip", {}, ["No.<|im_end|>\n", "<think>\n\n</think>\n\nYes. <|im_end|>\n"]),
        (QWEN3, "strip", OFF, ["No.<|im_end|>\n", "Yes. <|im_end|>\n"]),
        (R1, "strip", {}, ["No.<|end|>", "Yes. <|end|>"]),
        (
            GEMMA3,
            "keep",
            {},
            [f"{THOUGHT}\nNo.<end_of_turn>\n", "<think>\nEight is.\n</think>\n\nYes.<end_of_turn>\n"],
        ),
        (GEMMA3, "strip", {}, ["No.<end_of_turn>\n", "Yes.<end_of_turn>\n"]),
        (
            SMOLLM3,
            "keep",
            {},
            [f"{THOUGHT}\nNo.<|im_end|>\n", "<think>\nEight is.\n</think>\n\nYes. <|im_end|>\n"],
        ),
        (SMOLLM3, "strip", OFF, ["No.<|im_end|>\n", "Yes. <|im_end|>\n"]),
        (LLAMA3, "strip", {}, ["No.<|eot_id|>", "Yes.<|eot_id|>"]),
    ],
)
def test_all_assistant_turns_are_in_the_loss(tokenizer, template, policy, arguments, expected):
    tokenizer.bos_token = tokenizer.eos_token = "<|end|>"
    assert in_loss(tokenizer, template, TURNS, policy, **arguments) == expected


def test_a_thought_apart_from_its_turn_is_kept_or_stripped(tokenizer):
    turns = [TURNS[1], {"role": "assistant", "content": "No.", "reasoning_content": "Seven is odd."}]
    assert in_loss(tokenizer, QWEN3, turns, "keep") == ["<think>\nSeven is odd.\n</think>\n\nNo.<|im_end|>\n"]
    assert in_loss(tokenizer, QWEN3, turns, "strip", **OFF) == ["No.<|im_end|>\n"]
    with pytest.raises(DataError, match="holds a thought \\('reasoning_content'\\); set 'reasoning: keep'"):
        with_thoughts(turns, "error")


def test_a_template_that_drops_a_kept_thought_is_refused(tokenizer):
    tokenizer.bos_token = tokenizer.eos_token = "<|end|>"
    with pytest.raises(DataError, match="drops the thought of the last turn; set 'reasoning: strip'"):
        in_loss(tokenizer, R1, TURNS, "keep")


def test_a_conversation_that_ends_with_a_question_has_its_answers_in_the_loss(tokenizer):
    assert in_loss(tokenizer, QWEN3, TURNS[:4], "keep") == ["No.<|im_end|>\n"]


def test_a_thought_that_does_not_end_is_refused():
    turns = [{"role": "assistant", "content": "<think>\nSeven is"}]
    for policy in ("keep", "strip", "error"):
        with pytest.raises(DataError, match="begins a thought \\(<think>\\) that does not end"):
            with_thoughts(turns, policy)


def source(path, **changes) -> LocalSourceConfig:
    value = {"kind": "local", "files": [str(path)], "messages": "conversations", "chat_template": QWEN3}
    return LocalSourceConfig.model_validate(value | changes)


def test_a_mention_of_the_tag_by_a_user_is_no_thought(tokenizer):
    turns = [{"role": "user", "content": "What is </think>?"}, {"role": "assistant", "content": "A tag."}]
    assert in_loss(tokenizer, QWEN3, turns, "error", **OFF) == ["A tag.<|im_end|>\n"]


@pytest.mark.parametrize("arguments", [{}, OFF])
def test_a_stage_trains_on_rows_of_the_real_format(tokenizer, tmp_path, arguments):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(ROW) + "\n" for _ in range(8)))
    chats = source(path, reasoning="keep", chat_template_kwargs=arguments)
    batch = next(StageDataLoader(DataSources({"chats": chats}, tokenizer, seed=0), STAGE))
    (micro,) = batch.micro_batches
    learned = tokenizer.decode(micro.labels.reshape(-1)[micro.loss_indices])
    assert learned.count("Seven is odd.") == learned.count("No.") > 0
    assert "Is 7 even?" not in learned


def test_rows_with_thoughts_are_refused_unless_the_source_says_what_becomes_of_them(tokenizer, tmp_path):
    path = tmp_path / "rows.jsonl"
    plain = {"conversations": [ROW["conversations"][0], {"from": "gpt", "value": "No."}]}
    path.write_text(json.dumps(plain) + "\n" + json.dumps(ROW) + "\n")
    with pytest.raises(DataError, match=r"'chats': .*rows.jsonl, row 2: an assistant turn holds a thought"):
        next(StageDataLoader(DataSources({"chats": source(path)}, tokenizer, seed=0), STAGE))


def test_reasoning_needs_conversations():
    with pytest.raises(ValueError, match="'reasoning' needs 'messages'"):
        LocalSourceConfig.model_validate({"kind": "local", "files": ["a.jsonl"], "reasoning": "keep"})


def test_stripped_rows_are_filtered_by_what_is_trained_on(tokenizer, tmp_path):
    render = chat_renderer(tokenizer, QWEN3, OFF)
    stripped = parse_row(ROW, source(tmp_path, reasoning="strip"), render).segmented(render, ())
    assert "Seven is odd" not in stripped.text
    assert stripped.first_turn[1] == "<answer>\nNo.\n</answer><|im_end|>\n"
    assert read_messages(ROW["conversations"], "conversations")[1]["content"].startswith(THOUGHT)
