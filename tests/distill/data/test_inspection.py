"""`distill --check-data`: what the sources of a recipe hold, and what would be wrong."""

import json
import re

import pytest

from evalsuite.cli import main
from evalsuite.distill.data.inspection import inspect

from .reasoning_templates import QWEN3

QUESTION = {"from": "human", "value": "Is 7 even?"}
THOUGHT = "<think>\nSeven is odd.\n</think>\n\n"


def answer(text: str) -> dict[str, str]:
    return {"from": "assistant", "value": text}


@pytest.fixture
def recipe(small_recipe, stage, teacher_folder, tmp_path):
    def build(rows: list[list[dict[str, str]]], **changes):
        path = tmp_path / "chats.jsonl"
        path.write_text("".join(json.dumps({"conversations": row}) + "\n" for row in rows))
        chats = {"kind": "local", "files": [str(path)], "messages": "conversations", "chat_template": QWEN3}
        return small_recipe(
            teacher_folder,
            data={"chats": chats | changes},
            stages=[stage("kd", "kd", data="chats", tokens=512, loss_mask="completion")],
        )

    return build


def inspected(recipe, tokenizer):
    (found,) = inspect(recipe, tokenizer)
    return found


def test_a_source_is_shown_with_its_files_lengths_turns_and_loss(recipe, tokenizer):
    found = inspected(recipe([[QUESTION, answer(THOUGHT + "No.")]] * 3, reasoning="keep"), tokenizer)
    assert found.problems == []
    assert (found.rows.count, found.rows.files) == (3, {"chats.jsonl": 3})
    assert (found.rows.turns.total, found.rows.turns.thoughts, found.turns_in_loss) == (3, 3, 3)
    assert len(found.lengths) == len(found.in_loss) == 3
    assert 0 < found.in_loss[0] < found.lengths[0]
    text = str(found)
    assert "3 of 3 rows pass the filters" in text
    assert "3, 100.0 % in the loss, 100.0 % with thoughts" in text
    assert "assistant\n  | ⟦<think>\n  | Seven is odd." in text


@pytest.mark.parametrize(
    ("rows", "changes", "problem"),
    [
        (
            [[QUESTION, answer("No.")], [QUESTION, answer(THOUGHT + "No.")]],
            {"reasoning": "keep"},
            r"1 of 2 assistant turns have thoughts and the others none, the first in .*chats.jsonl, row 2",
        ),
        ([[QUESTION, answer(THOUGHT + "No.")]], {}, r"row 1: an assistant turn holds a thought"),
        (
            [[QUESTION, answer("No.")], [QUESTION, answer(" ")]],
            {},
            r"1 assistant turns have no answer, .*row 2",
        ),
        ([[QUESTION, QUESTION, answer("No.")]], {}, r"roles are out of order in 1 conversations, .*row 1"),
        ([[answer("No."), QUESTION, answer("No.")]], {}, r"roles are out of order in 1 conversations"),
        ([[QUESTION]], {}, r"no document has a token in the loss with loss_mask 'completion'"),
        ([[QUESTION, answer("No.")]], {"min_characters": 10_000}, r"none of 1 rows passes the filters"),
        ([[QUESTION, answer("No.")]], {"messages": "conversation"}, r"there is no column 'conversation'"),
        ([[QUESTION, answer("No.")]], {"files": ["nowhere/*.jsonl"]}, r"no file matches"),
        (
            [[QUESTION, answer("No."), QUESTION, answer("No.")]],
            {
                "chat_template": "{%- for m in messages -%}{%- if loop.last or m.role == 'user' -%}"
                "{{- m.content + ';' -}}{%- endif -%}{%- endfor -%}"
            },
            r"the chat template drops or rewrites 1 assistant turns",
        ),
    ],
)
def test_what_would_be_wrong_is_named_with_source_and_row(recipe, tokenizer, rows, changes, problem):
    found = inspected(recipe(rows, **changes), tokenizer)
    (text,) = found.problems
    assert re.search(problem, text), text


def test_the_command_shows_all_sources_and_ends_with_an_error(tmp_path, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"conversations": [QUESTION, answer(THOUGHT + "No.")]}) + "\n")
    chats = {"kind": "local", "files": [str(rows)], "messages": "conversations", "chat_template": "chatml"}
    sources = {"pocket": {"kind": "pocket"}, "chats": chats}
    options = ["--set", f"data={json.dumps(sources)}", "stage.kd.data=chats"]
    assert main(["distill", "pocket", "--check-data", *options]) == 65
    shown = capsys.readouterr()
    assert "pocket in mixer: synthetic pocket corpus" in shown.out
    assert "PROBLEM: data source 'chats'" in shown.out
    assert "an assistant turn holds a thought" in shown.out
    assert "1 problem in the data" in shown.err
    assert main(["distill", "pocket", "--check-data"]) == 0
    assert capsys.readouterr().out.endswith("no problem found\n")
