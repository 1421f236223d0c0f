"""Teacher responses as training data."""

import json

import pytest

from evalsuite.distill import distill
from evalsuite.foundation import ConfigError, DataError, read_jsonl

PROMPTS = {"kind": "pocket", "max_haystack_tokens": 128, "mixture": {"facts": 1.0}}


def test_a_student_trains_on_responses_of_the_pocket_teacher(tmp_path, small_recipe, stage):
    replies = {"kind": "responses", "prompt_source": "questions", "num_prompts": 12, "max_new_tokens": 6}
    options = {"data": "replies", "loss_mask": "completion", "packing": "documents", "seq_len": 32}
    recipe = small_recipe(
        "pocket",
        data={"questions": PROMPTS, "replies": replies},
        stages=[stage("kd", "kd", tokens=256, **options)],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    rows = list(read_jsonl(tmp_path / "out" / "responses" / "replies.jsonl"))
    assert 6 <= len(rows) <= 12
    assert all(row["prompt"].startswith("Question:") and row["completion"] for row in rows)
    assert json.loads((folder / "lineage.json").read_text())["recipe"]["hash"] == recipe.hash
    modified = (tmp_path / "out" / "responses" / "replies.jsonl").stat().st_mtime_ns
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    assert (tmp_path / "out" / "responses" / "replies.jsonl").stat().st_mtime_ns == modified


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ({"prompt_source": "question"}, ConfigError, "is not a source of prompts"),
        ({"prompt_source": "questions", "max_new_tokens": 1}, DataError, "none of 4 responses was completed"),
        ({"prompt_source": "plain"}, DataError, "has no prompts with completions"),
    ],
)
def test_prompt_sources_without_prompts_or_responses_are_refused(
    teacher_folder, tmp_path, small_recipe, stage, source, error, message
):
    (tmp_path / "plain.jsonl").write_text(json.dumps({"text": "a fox"}) + "\n")
    plain = {"kind": "local", "files": [str(tmp_path / "plain.jsonl")]}
    data = {
        "questions": PROMPTS,
        "plain": plain,
        "replies": {"kind": "responses", "num_prompts": 4, **source},
    }
    recipe = small_recipe(teacher_folder, data=data, stages=[stage("kd", "kd", data="replies")])
    with pytest.raises(error, match=message):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
