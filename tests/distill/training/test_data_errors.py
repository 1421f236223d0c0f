"""Data that cannot be read during training: the steps before it are not lost."""

import json

import pytest

from evalsuite.distill import Recipe, distill
from evalsuite.distill.data import local_reader, side_by_side
from evalsuite.distill.training import placement
from evalsuite.foundation import ConfigError, DataError, EvalsuiteError, read_jsonl
from tests.distill.training.saved_states import read_state

SENTENCE = "house of Igor is in Dunmore Nils likes to eat soup with a fox"
WORDS = SENTENCE.split()


@pytest.fixture
def recipe(teacher_folder, small_recipe, stage, tmp_path, monkeypatch):
    """KD on local documents, of which eight are read at a time, and sixteen before the first step."""
    monkeypatch.setattr(side_by_side, "CHUNK_ROWS", 8)
    rows = [" ".join(WORDS[(number * k) % 14] for k in range(12)) for number in range(1, 401)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return small_recipe(
        teacher_folder,
        data={"local": {"kind": "local", "files": [str(path)], "shuffle_buffer_size": 16}},
        stages=[stage("kd", "kd", data="local", tokens=128 * 16)],
    )


def test_a_run_whose_data_fail_resumes_after_its_last_step(recipe, tmp_path, monkeypatch):
    (whole,) = distill(recipe, tmp_path / "whole", quiet=True, device="cpu")
    lines = local_reader._lines

    def failing(path):
        for number, line in enumerate(lines(path)):
            if number >= 112:
                raise OSError("Input/output error")
            yield line

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(local_reader, "_lines", failing)
        with pytest.raises(DataError, match=r"rows\.jsonl: cannot be read \(Input/output error\)"):
            distill(recipe, out, quiet=True, device="cpu")
    progress, _ = read_state(out / "state")
    steps = len(list(read_jsonl(out / "metrics.jsonl")))
    assert progress.step == steps > 4
    (student,) = distill(recipe, out, quiet=True, device="cpu")
    assert len(list(read_jsonl(out / "metrics.jsonl"))) == 16
    weights = [folder / "model.safetensors" for folder in (whole, student)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def test_sources_that_no_stage_reads_are_not_opened(recipe, stage, tmp_path):
    """Neither a chat source that the tokenizer has no template for, nor prompts for responses."""
    chat = tmp_path / "chat.jsonl"
    chat.write_text(json.dumps({"messages": []}) + "\n")
    unused = {
        "chat": {"kind": "local", "files": [str(chat)], "messages": "messages"},
        "gone": {"kind": "local", "files": [str(tmp_path / "gone.jsonl")]},
        "answers": {"kind": "responses", "prompt_source": "gone"},
    }
    value = recipe.model_dump()
    value = {**value, "data": {**value["data"], **unused}, "stages": [stage("kd", "kd", data="local")]}
    (folder,) = distill(Recipe.model_validate(value), tmp_path / "out", quiet=True, device="cpu")
    assert folder.exists()
    used = {**value, "stages": [stage("kd", "kd", data={"local": 1, "chat": 1})]}
    with pytest.raises(ConfigError, match="data source 'chat': the tokenizer has no chat template"):
        distill(Recipe.model_validate(used), tmp_path / "used", quiet=True, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"local": {"kind": "local", "files": ["gone.jsonl"]}}}, r"gone\.jsonl"),
        ({"stages": [("kd", "kd", {"seq_len": 513, "tokens": 1026})]}, "the teacher's positions end at 512"),
        ({"student": {"mixers": ["gla"], "softmax_layers": [9]}}, "the teacher has layers 0 to 2"),
        ({"student": {"mixers": ["gla"], "options": {"gla": {"decay_rank": 0.5}}}}, "decay_rank"),
    ],
)
def test_bad_recipes_and_data_are_refused_before_weights_are_read(
    teacher_folder, small_recipe, stage, tmp_path, monkeypatch, changes, message
):
    def loaded(*_, **__):
        raise AssertionError("weights were read")

    monkeypatch.setattr(placement.Placement, "open", loaded)
    stages = [
        stage(*given[:2], data="local" if "data" in changes else "pocket", **given[2])
        for given in changes.get("stages", [("kd", "kd", {})])
    ]
    with pytest.raises(EvalsuiteError, match=message):
        distill(
            small_recipe(teacher_folder, **{**changes, "stages": stages}),
            tmp_path / "out",
            quiet=True,
            device="cpu",
        )
