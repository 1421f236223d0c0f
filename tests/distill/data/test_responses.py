"""Teacher responses as training data."""

import json
from pathlib import Path

import pytest

from evalsuite.distill import distill
from evalsuite.distill.data.responses import _prompts, generate_responses
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.foundation import ConfigError, DataError, read_jsonl
from evalsuite.tasks.synthetic.pocket import load_tokenizer

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
    (responses,) = (tmp_path / "out" / "responses").glob("replies.*.jsonl")
    rows = list(read_jsonl(responses))
    assert 6 <= len(rows) <= 12
    assert all(row["prompt"].startswith("Question:") and row["completion"] for row in rows)
    assert json.loads((folder / "lineage.json").read_text())["recipe"]["hash"] == recipe.hash
    modified = responses.stat().st_mtime_ns
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")
    assert responses.stat().st_mtime_ns == modified


def test_prompts_come_from_all_files_of_their_source(teacher_folder, tmp_path, small_recipe, stage):
    files = []
    for subject in ("fox", "hen"):
        files.append(tmp_path / f"{subject}.jsonl")
        rows = [{"prompt": f"Question: {subject} {n}?", "completion": "yes"} for n in range(40)]
        files[-1].write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"prompt": "prompt", "completion": "completion"}
    questions = {"kind": "local", "files": [str(path) for path in files], **columns}
    replies = {"kind": "responses", "prompt_source": "questions", "num_prompts": 20, "max_new_tokens": 6}
    recipe = small_recipe(
        teacher_folder,
        data={"questions": questions, "replies": replies},
        stages=[stage("kd", "kd", data="replies")],
    )
    tokenizer = load_tokenizer()
    prompts = _prompts("replies", recipe.data["replies"], recipe.data, tokenizer)
    assert len(set(prompts)) == 20
    assert 5 <= sum("fox" in prompt for prompt in prompts) <= 15
    assert prompts == _prompts("replies", recipe.data["replies"], recipe.data, tokenizer)


def test_changed_settings_do_not_reuse_earlier_responses(tmp_path, small_recipe, stage):
    group, found = ProcessGroup("cpu"), []
    for num_prompts in (6, 12):
        replies = {"kind": "responses", "prompt_source": "questions", "max_new_tokens": 6}
        recipe = small_recipe(
            "pocket",
            data={"questions": PROMPTS, "replies": {**replies, "num_prompts": num_prompts}},
            stages=[stage("kd", "kd", data="replies", tokens=256)],
        )
        source = generate_responses(
            recipe.data, "pocket", tmp_path / "out", group, read=recipe.sources_read, quiet=True
        )["replies"]
        found.append(list(read_jsonl(Path(source.files[0]))))
    assert len(found[0]) <= 6 < len(found[1])


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
