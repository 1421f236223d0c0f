"""The teacher's own answers as training data."""

import json

import pytest

from evalsuite.distill import distill
from evalsuite.foundation import ConfigError, DataError, read_jsonl

PROMPTS = {"kind": "pocket", "longest": 128, "kinds": {"facts": 1.0}}


def test_a_student_learns_from_what_the_pocket_teacher_writes(tmp_path, small_recipe, stage):
    answers = {"kind": "responses", "prompts": "asked", "count": 12, "max_new_tokens": 6}
    options = {"data": "answers", "mask": "completion", "packing": "documents", "length": 32}
    recipe = small_recipe(
        "pocket",
        data={"asked": PROMPTS, "answers": answers},
        stages=[stage("kd", "kd", tokens=256, **options)],
    )
    (folder,) = distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    rows = list(read_jsonl(tmp_path / "out" / "responses" / "answers.jsonl"))
    assert 6 <= len(rows) <= 12
    assert all(row["prompt"].startswith("Question:") and row["completion"] for row in rows)
    assert json.loads((folder / "lineage.json").read_text())["recipe"]["hash"] == recipe.hash
    written = (tmp_path / "out" / "responses" / "answers.jsonl").stat().st_mtime_ns
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    assert (tmp_path / "out" / "responses" / "answers.jsonl").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ({"prompts": "askd"}, ConfigError, "names no source of prompts"),
        ({"prompts": "asked", "max_new_tokens": 1}, DataError, "none of 4 answers came to an end"),
        ({"prompts": "told"}, DataError, "holds no prompt with a completion"),
    ],
)
def test_prompts_without_answers_are_refused(
    teacher_folder, tmp_path, small_recipe, stage, source, error, message
):
    (tmp_path / "told.jsonl").write_text(json.dumps({"text": "a fox"}) + "\n")
    told = {"kind": "local", "files": [str(tmp_path / "told.jsonl")]}
    data = {"asked": PROMPTS, "told": told, "answers": {"kind": "responses", "count": 4, **source}}
    recipe = small_recipe(teacher_folder, data=data, stages=[stage("kd", "kd", data="answers")])
    with pytest.raises(error, match=message):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")
